"""How the kernels are built, kept and found again."""

import itertools
import os
import platform
import shutil
import tempfile
import warnings

import pytest
import torch

from nala_platform.attention import nala_attention
from nala_platform.attention.native import library
from nala_platform.errors import UserError

KEPT_OPEN = []  # what a test builds must outlive the calls into it


def counting_compiler(folder):
    """A compiler that works and, after each build, writes a line into the file ``builds``; it does not optimise."""
    script = folder / "compiler"
    compiler = shutil.which("c++") or shutil.which("g++")
    build = f'"{compiler}" "$@" -O0 && case "$*" in *nala.cpp*) echo built >> "{folder}/builds";; esac'
    script.write_text(f"#!/bin/sh\n{build}\n")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """Nothing is found or built yet, and the cache is an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    KEPT_OPEN.append(library.library)
    for function in (library.library, library._found):
        monkeypatch.setattr(library, function.__name__, library.cache(function.__wrapped__))
    return tmp_path / "nala" / "native"


@pytest.mark.usefixtures("fresh_library")
class TestBuilding:
    def test_without_a_compiler(self, make_inputs, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        inputs = make_inputs(9)
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler on the path, or named by CXX"):
            nala_attention(*inputs[:3], backend="native")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing to complain of
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))

    def test_a_compiler_that_fails(self, fresh_library, make_inputs, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        inputs = make_inputs(9)
        with pytest.raises(UserError, match=r"could not be compiled by .*false: exit code 1; backend='chunked'"):
            nala_attention(*inputs[:3], backend="native")
        with pytest.warns(UserWarning, match=r"could not be compiled.*it is used now"):
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))
        assert [*fresh_library.iterdir()] == []

    def test_what_cannot_be_loaded(self, make_inputs, monkeypatch):
        monkeypatch.setattr(library, "_compiled", lambda command: None)  # leaves an empty file
        with pytest.raises(UserError, match=r"could not be built or loaded: .*file too short; backend='chunked'"):
            nala_attention(*make_inputs(9)[:3], backend="native")

    def test_it_is_built_once(self, fresh_library, make_inputs, monkeypatch):
        kernels = library.library(True, False)
        KEPT_OPEN.append(kernels)
        (built,) = fresh_library.iterdir()
        monkeypatch.setattr(library, "_compiled", None)  # it would be called
        assert library.library.__wrapped__(True, False)._name == str(built)

    def test_another_compiler_or_processor_is_another_library(self, monkeypatch):
        compiler = library.command()
        build = (*compiler, *library.FLAGS, "nala.cpp")
        before = library._fingerprint(compiler, build)
        assert library._fingerprint(compiler, build) == before
        assert library._fingerprint(compiler, (*compiler, "-DX", *build[1:])) != before
        monkeypatch.setattr(library, "processor", lambda: "another")
        assert library._fingerprint(compiler, build) != before

    def test_what_is_damaged_is_built_again(self, fresh_library, make_inputs, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(library, "_compiled", lambda build: None)  # leaves an empty file
            with pytest.raises(UserError, match="file too short"):
                library.library(True, False)
        (built,) = fresh_library.iterdir()
        assert built.stat().st_size == 0
        killed = fresh_library / "killed.part"
        killed.write_text("")
        os.utime(killed, (0, 0))
        inputs = make_inputs(9)
        out = nala_attention(*inputs[:3], backend="native")
        KEPT_OPEN.append(library.library)
        torch.testing.assert_close(out, nala_attention(*inputs[:3], backend="reference"))
        assert [*fresh_library.iterdir()] == [built]

    def test_a_compiler_with_options(self, tmp_path, monkeypatch):
        """The options are kept, and a path may have spaces."""
        spaced = tmp_path / "a folder" / "c++"
        spaced.parent.mkdir()
        spaced.symlink_to(shutil.which("c++") or shutil.which("g++"))
        monkeypatch.setenv("CXX", f"'{spaced}' -DA -DB")
        assert library.command() == (str(spaced), "-DA", "-DB")
        monkeypatch.setenv("CXX", str(spaced))
        assert library.command() == (str(spaced),)

    @pytest.mark.parametrize("kind", ["no quotation", "no program", "no text"])
    def test_a_compiler_without_sense(self, make_inputs, monkeypatch, tmp_path, kind):
        program = tmp_path / "compiler"
        program.write_bytes(b"junk" if kind == "no program" else b"#!/bin/sh\nprintf '\\377\\376 no' >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", "c++ '" if kind == "no quotation" else str(program))
        inputs = make_inputs(9)
        with pytest.raises(UserError, match="backend='chunked' needs no compiler"):
            nala_attention(*inputs[:3], backend="native")
        with pytest.warns(UserWarning, match="it is used now"):
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))

    def test_a_home_that_cannot_be_written(self, make_inputs, monkeypatch, tmp_path, caplog):
        """The library is kept among the user's temporary files, and one line says where."""
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        inputs = make_inputs(9)
        out = nala_attention(*inputs[:3], backend="native")
        KEPT_OPEN.append(library.library)
        torch.testing.assert_close(out, nala_attention(*inputs[:3], backend="reference"))
        (folder,) = tmp_path.glob("nala-*")
        assert len([*folder.glob("*.so")]) == 1
        (line,) = caplog.messages
        assert f"(kept in {folder})" in line

    def test_temporary_files_that_others_can_write(self, monkeypatch, tmp_path, caplog):
        """What somebody else may have put there is not loaded: each process builds for itself."""
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        (tmp_path / f"nala-{os.getuid()}").mkdir()
        (tmp_path / f"nala-{os.getuid()}").chmod(0o777)
        monkeypatch.setenv("CXX", counting_compiler(tmp_path))
        KEPT_OPEN.append(library.library.__wrapped__(True, False))
        assert [*(tmp_path / f"nala-{os.getuid()}").iterdir()] == []
        assert "not kept" in caplog.text

    def test_processes_that_start_at_once_compile_once(self, fresh_library, monkeypatch, tmp_path):
        """On an empty cache: one builds, the others wait for it, as the ranks of one machine do."""
        monkeypatch.setenv("CXX", counting_compiler(tmp_path))
        children = []
        for _ in range(3):
            if (child := os.fork()) == 0:
                try:
                    library.library.__wrapped__(False, False)
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        assert (tmp_path / "builds").read_text().split() == ["built"]
        assert len([*fresh_library.iterdir()]) == 1

    def test_a_file_system_without_locks(self, fresh_library, monkeypatch, tmp_path):
        import fcntl

        def refuse(handle, operation):
            raise OSError("no locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        monkeypatch.setenv("CXX", counting_compiler(tmp_path))
        KEPT_OPEN.append(library.library.__wrapped__(True, True))
        assert len([*fresh_library.iterdir()]) == 1

    def test_another_process_that_never_ends_is_not_waited_for(self, fresh_library, monkeypatch, tmp_path):
        import fcntl

        fresh_library.mkdir(parents=True)
        monkeypatch.setenv("CXX", counting_compiler(tmp_path))
        monkeypatch.setattr(library, "PATIENCE", 0.2)
        holder = os.open(fresh_library, os.O_RDONLY)
        fcntl.flock(holder, fcntl.LOCK_EX)
        KEPT_OPEN.append(library.library.__wrapped__(True, True))
        os.close(holder)
        assert (tmp_path / "builds").read_text().split() == ["built"]

    @pytest.mark.slow
    @pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
    @pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
    def test_older_processors(self, make_inputs, monkeypatch, processor, results):
        """Vectors of 16 and of 32 bytes."""
        monkeypatch.setattr(library, "own_processor", lambda compiler: (f"-march={processor}",))
        bounds = {torch.float64: 1e-11, torch.float32: 5e-6}
        for (dtype, bound), is_causal in itertools.product(bounds.items(), (False, True)):
            inputs = make_inputs(130, D=18, E=7, dtype=dtype)
            wide = inputs._replace(**{name: getattr(inputs, name).double() for name in ("query", "key", "value")})
            ours = results(inputs, direction="cosine", is_causal=is_causal)
            KEPT_OPEN.append(library.library)
            theirs = results(wide, direction="cosine", is_causal=is_causal, backend="reference")
            for x, y in zip(ours, theirs, strict=True):
                assert (x.double() - y).norm() <= bound * y.norm()
