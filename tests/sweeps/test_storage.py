"""The study's storage under processes that die: locks go with them, half a line is cut, nothing told is lost."""

import contextlib
import fcntl
import json
import os
import select
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from nala_platform.sweeps import patience, waiting
from nala_platform.sweeps.owner import is_alive, me
from nala_platform.sweeps.slots import devices, shares, slot
from nala_platform.sweeps.storage import JOURNAL, exclusive, open_storage, quiet, settled
from postgres import restart, server

from nala_platform.errors import StorageError, UserError

quiet()


def study(folder: Path) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=open_storage(folder, None), load_if_exists=True)


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("torn", [b'{"op_code"', b'{"op_code":4,"worker_id":"x"}', b"\xff\xfe"])
def test_half_a_line_of_a_killed_writer_is_cut_off(torn: bytes, tmp_path: Path):
    """Optuna's own lock would leave it: the next record runs into it, and no one reads the file again."""
    first = study(tmp_path)
    first.add_trial(optuna.trial.create_trial(value=1.0))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(torn)
    assert len(study(tmp_path).trials) == 1
    first.add_trial(optuna.trial.create_trial(value=2.0))
    assert [trial.value for trial in study(tmp_path).trials] == [1.0, 2.0]
    assert all(json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines())


WRITER = """
import sys, optuna
from pathlib import Path
from nala_platform.sweeps.storage import open_storage, quiet
quiet()
study = optuna.load_study(study_name="s", storage=open_storage(Path(sys.argv[1]), None))
for number in range(int(sys.argv[2])):
    study.add_trial(optuna.trial.create_trial(value=float(number)))
    print(number, flush=True)
"""


def test_eight_workers_at_once_lose_nothing(tmp_path: Path):
    """S4."""
    study(tmp_path)
    writers = [child(WRITER, str(tmp_path), "25") for _ in range(8)]
    assert [writer.wait(120) for writer in writers] == [0] * 8
    trials = study(tmp_path).trials
    assert len(trials) == 200 and [trial.number for trial in trials] == list(range(200))


def test_writers_that_are_killed_lose_no_more_than_what_they_had_not_told(tmp_path: Path):
    study(tmp_path)
    told = 0
    for _ in range(4):
        writers = [child(WRITER, str(tmp_path), "100000") for _ in range(2)]
        for writer in writers:
            writer.stdout.readline()
        time.sleep(0.15)
        for writer in writers:
            writer.kill()
        told += sum(1 + writer.communicate()[0].count("\n") for writer in writers)
    # each killed writer may have written one more than it could say
    assert told <= len(study(tmp_path).trials) <= told + 8
    study(tmp_path).add_trial(optuna.trial.create_trial(value=0.0))


HOLDER = """
import sys, time
from pathlib import Path
from nala_platform.sweeps.storage import exclusive, open_storage
with exclusive(open_storage(Path(sys.argv[1]), None), Path(sys.argv[1]), "s"):
    print("in", flush=True)
    time.sleep(600)
"""


def test_a_lock_goes_with_its_holder(tmp_path: Path):
    holder = child(HOLDER, str(tmp_path))
    assert holder.stdout.readline() == "in\n"
    waiter = child(HOLDER, str(tmp_path))
    assert not select.select([waiter.stdout], [], [], 4.0)[0]
    holder.kill()
    assert waiter.stdout.readline() == "in\n"
    waiter.kill()
    with exclusive(open_storage(tmp_path, None), tmp_path, "s"):
        pass


def test_a_wait_for_a_lock_says_for_whom_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(waiting, "LIMIT", 0.5)
    monkeypatch.setattr(waiting, "NOTICE", 0.1)
    made = study(tmp_path)
    other = child(HOLDER, str(tmp_path))
    assert other.stdout.readline() == "in\n"
    with pytest.raises(StorageError) as caught, exclusive(open_storage(tmp_path, None), tmp_path, "s"):
        pass
    assert f"{tmp_path / 'sweep.lock'} has been locked by process {other.pid} for " in str(caught.value)
    assert "\n" not in str(caught.value)
    said = capsys.readouterr().err
    assert said.startswith(f"nala: waiting for process {other.pid}, which holds the lock on {tmp_path / 'sweep.lock'}")
    assert said.count("\n") == 1
    other.kill()
    other.wait()
    journal = os.open(tmp_path / JOURNAL, os.O_RDWR)
    fcntl.flock(journal, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match=f"journal.log has been locked by process {os.getpid()} for "):
        made.add_trial(optuna.trial.create_trial(value=1.0))
    reader = optuna.load_study(study_name="s", storage=open_storage(tmp_path, None))
    assert len(reader.trials) == 0  # to read takes no lock
    os.close(journal)
    made.add_trial(optuna.trial.create_trial(value=1.0))


def test_a_wait_for_the_lock_in_a_database_ends(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "LIMIT", 0.5)
    one, two = open_storage(tmp_path, postgres), open_storage(tmp_path, postgres)
    with exclusive(one, tmp_path, "s"):
        with (
            pytest.raises(StorageError, match="the study in the database has been locked by another process"),
            exclusive(two, tmp_path, "s"),
        ):
            pass
        with exclusive(two, tmp_path, "another study"):
            pass
    with exclusive(two, tmp_path, "s"):
        pass


def test_an_owner_is_alive_until_it_is_dead_even_unburied():
    assert is_alive(me(), 0.0)
    process = child("import time; time.sleep(600)")
    owner = {**me(), "pid": process.pid, "started": None}
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    owner["started"] = int(fields[19])
    assert is_alive(owner, 0.0)
    assert not is_alive({**owner, "started": owner["started"] - 1}, time.time())  # the number was used again
    process.kill()
    time.sleep(0.2)
    assert not is_alive(owner, time.time())  # a zombie
    process.wait()
    assert not is_alive(owner, time.time())
    elsewhere = {**owner, "space": "another machine"}
    assert is_alive(elsewhere, time.time()) and not is_alive(elsewhere, time.time() - 1000)


def test_trials_share_the_devices_and_the_rest_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """S12."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc,7")
    assert devices() == ["4", "GPU-abc", "7"]
    assert shares(devices(), 1) == [["4"], ["GPU-abc"], ["7"]] and shares(devices(), 3) == [["4", "GPU-abc", "7"]]
    with pytest.raises(UserError, match="--devices-per-trial is 4, but this machine has 3 GPUs"):
        shares(devices(), 4)
    with slot(tmp_path, 1, lambda: True) as one, slot(tmp_path, 1, lambda: True) as two:
        with slot(tmp_path, 1, lambda: True) as three:
            found = [each["CUDA_VISIBLE_DEVICES"] for each in (one, two, three)]
            assert sorted(found) == ["4", "7", "GPU-abc"]
            wanted = iter([True, True, False])
            with slot(tmp_path, 1, lambda: next(wanted)) as none:
                assert none is None
        with slot(tmp_path, 1, lambda: True) as again:
            assert again == three
    with slot(tmp_path, 0, lambda: True) as free:
        assert free == {}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:1/none", "cannot open|needs a driver"),
        ("nonsense", "cannot open --storage nonsense"),
        ("postgresql+psycopg://me:secret@h:port/d", "cannot open|needs a driver"),
        ("postgresql+nothing://me:secret@h/d", "cannot open|needs a driver"),
    ],
)
def test_a_database_that_is_not_there_is_one_line_without_the_password(url: str, said: str, tmp_path: Path):
    with pytest.raises(UserError, match=said) as caught:
        open_storage(tmp_path, url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_database_of_another_version_is_one_line(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    open_storage(tmp_path, url)
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
        database.commit()
    with pytest.raises(UserError, match=r"cannot open --storage sqlite.*no longer compatible with the table schema"):
        open_storage(tmp_path, url)


def test_a_server_that_starts_again_ends_nothing(tmp_path: Path):
    """Calls wait for it, the lock's too; a lock that went with it costs no error."""
    with server() as url:
        storage = open_storage(tmp_path, url)
        study = optuna.create_study(study_name="s", storage=storage)
        with exclusive(storage, tmp_path, "s"):
            study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.WAITING))
            restart(url, seconds=2.0)
            storage.set_trial_user_attr(study.trials[0]._trial_id, "key", "value")
        restart(url, seconds=2.0)
        with exclusive(storage, tmp_path, "s"):
            assert study.trials[0].user_attrs == {"key": "value"}
            identity = study.trials[0]._trial_id
            assert storage.set_trial_state_values(identity, optuna.trial.TrialState.RUNNING)
            assert not storage.set_trial_state_values(identity, optuna.trial.TrialState.RUNNING)


def test_a_server_that_stays_away_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patience, "PATIENCE", 0.5)
    with server() as url:
        storage = open_storage(tmp_path, url)
    with pytest.raises(StorageError, match=r"the sweep's database has been away for 0 s: ") as caught:
        storage.get_all_studies()
    assert "\n" not in str(caught.value)
    with pytest.raises(StorageError), exclusive(storage, tmp_path, "s"):
        pass


def test_a_database_file_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert settled(None) is None and settled("sqlite:///x.db") == f"sqlite:///{tmp_path}/x.db"
    assert settled("postgresql+psycopg://h/d") == "postgresql+psycopg://h/d"
    for url in ("sqlite://", "sqlite:///:memory:", "mysql+pymysql://me:secret@h/d"):
        with pytest.raises(UserError) as caught:
            settled(url)
        assert "secret" not in str(caught.value)
    storage = open_storage(tmp_path, settled("sqlite:///x.db"))
    with exclusive(storage, tmp_path / "nowhere", "s"):  # the lock is the database's, whatever the folder
        assert (tmp_path / "x.db.lock").exists()
