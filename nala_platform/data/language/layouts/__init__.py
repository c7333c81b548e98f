"""How text and ready tokens lie on disk: from a folder to the files of each part."""
