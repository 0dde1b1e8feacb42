"""Noticing edits of the configuration file, and setting `dynamic_on` to false in it."""

import json
import os
import stat
import threading

import pytest

from msmon.config import ConfigError, dynamic_file
from msmon.config.dynamic_file import ConfigWatch, digest_of, switch_off
from msmon.config.json_text import value_span
from msmon.config.reading import Stamp


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"eps": 1}')
    return file


def in_place(path, text):
    with path.open("r+") as file:
        file.write(text)
        file.truncate()


def truncate_and_write(path, text):
    path.write_text(text)


def rename(path, text):
    new = path.with_name("c.json~")
    new.write_text(text)
    os.replace(new, path)


def remove_and_create(path, text):
    path.unlink()
    path.write_text(text)


def keeping_the_time(path, text):
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


WAYS = [in_place, truncate_and_write, rename, remove_and_create, keeping_the_time]


@pytest.mark.parametrize("write", WAYS)
def test_each_way_to_save_is_noticed_once(path, write):
    watch = ConfigWatch(path)
    assert watch.changed().data == b'{"eps": 1}'
    assert watch.changed() is None
    for text in ('{"eps": 2}', '{"eps": 345}', '{"eps": 1}'):
        write(path, text)
        content = watch.changed()
        assert content.data == text.encode()
        assert content.digest == digest_of(text.encode())
        assert watch.changed() is None
    # Saved again with the same content: not a change.
    write(path, '{"eps": 1}')
    assert watch.changed() is None


def test_two_writes_in_one_tick_of_a_coarse_clock(path, monkeypatch):
    """A file system that keeps whole seconds gives the same stamp to two contents of the same size."""
    now = [100.0]
    monkeypatch.setattr(dynamic_file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Stamp, "of", classmethod(lambda cls, status: cls(0, 0, status.st_size, 7, 7)))
    watch = ConfigWatch(path)
    assert watch.changed().data == b'{"eps": 1}'
    in_place(path, '{"eps": 2}')
    assert watch.changed().data == b'{"eps": 2}'
    now[0] += 1.9
    in_place(path, '{"eps": 3}')
    assert watch.changed().data == b'{"eps": 3}'
    # The tick is over: now the stamp tells, and the content is not read any more.
    now[0] += 2.1
    in_place(path, '{"eps": 4}')
    assert watch.changed() is None


def test_an_unchanged_file_is_not_opened(path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(dynamic_file.time, "monotonic", lambda: now[0])
    watch = ConfigWatch(path)
    watch.changed()
    now[0] += 3
    monkeypatch.setattr(dynamic_file, "read_file", lambda path: pytest.fail("opened"))
    assert watch.changed() is None


def test_what_cannot_be_read_is_said_once(path):
    watch = ConfigWatch(path)
    watch.changed()
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        watch.changed()
    assert watch.changed() is None
    path.mkdir()
    assert watch.changed() is None
    path.rmdir()
    path.write_text('{"eps": 1}')
    assert watch.changed() is None  # back with the same content
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        watch.changed()
    path.write_text('{"eps": 2}')
    assert watch.changed().data == b'{"eps": 2}'


def test_a_file_that_changes_while_it_is_read_is_read_again_later(path, monkeypatch):
    watch = ConfigWatch(path)
    watch.changed()
    path.write_text('{"eps": 22}')
    real = os.fstat
    calls = []

    def fstat(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:  # between the read and the second look
            truncate_and_write(path, '{"eps": 333}')
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    assert watch.changed() is None
    monkeypatch.undo()
    assert watch.changed().data == b'{"eps": 333}'


def test_a_writer_at_work_is_never_taken_for_a_whole_configuration(path):
    """Contents are the whole old or new text, or a beginning that is not JSON; the last text is seen in the end."""
    texts = [json.dumps({"eps": n, "targets": {f"m{i}": {} for i in range(200 * n)}}) for n in (1, 2, 3)]
    path.write_text(texts[0])
    watch = ConfigWatch(path)
    seen = []

    def write():
        for i in range(60):
            with path.open("w", buffering=64) as file:
                file.write(texts[i % 3])
        path.write_text(texts[0])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        content = watch.changed()
        if content is not None:
            seen.append(content.data.decode())
    writer.join()
    last = watch.changed()
    assert (last.data.decode() if last else seen[-1]) == texts[0]
    for text in seen:
        if text not in texts:
            assert any(whole.startswith(text) for whole in texts)
            with pytest.raises(json.JSONDecodeError):
                json.loads(text)


BEFORE = """\
\ufeff{
\t"zzz_unknown" : [1,2 , {"dynamic_on": true}],
\t"note": "dynamic_on: true",
\t"dynamic\\u005fon"  :  true ,
\t"eps": 1e-08, "wg_distribution": true
}
"""


def test_switch_off_changes_one_word(path):
    path.write_text(BEFORE, newline="\r\n")
    path.chmod(0o664)
    data = path.read_bytes()
    inode = path.stat().st_ino
    assert switch_off(path, digest_of(data))
    expected = data.replace(b":  true ,", b":  false ,")
    assert expected != data
    assert path.read_bytes() == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert path.stat().st_ino != inode
    assert [entry.name for entry in path.parent.iterdir()] == ["c.json"]


def test_the_mode_is_kept_where_other_attributes_cannot_be(path, monkeypatch):
    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "listxattr", refuse)
    path.write_text('{"dynamic_on": true}')
    path.chmod(0o604)
    assert switch_off(path, digest_of(path.read_bytes()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_switch_off_keeps_extended_attributes(path):
    path.write_text('{"dynamic_on": true}')
    try:
        os.setxattr(path, "user.note", b"mine")
    except OSError:
        pytest.skip("the file system has none")
    assert switch_off(path, digest_of(path.read_bytes()))
    assert os.getxattr(path, "user.note") == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_switch_off_keeps_the_owner(path):
    path.write_text('{"dynamic_on": true}')
    os.chown(path, 1234, 2345)
    switch_off(path, digest_of(path.read_bytes()))
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_switch_off_leaves_what_someone_else_wrote(path, monkeypatch):
    path.write_text('{"dynamic_on": true}')
    digest = digest_of(path.read_bytes())
    path.write_text('{"dynamic_on": true, "eps": 2}')
    assert not switch_off(path, digest)
    assert path.read_text() == '{"dynamic_on": true, "eps": 2}'
    # Even if they write while the new file is being made.
    digest = digest_of(path.read_bytes())
    real = os.fsync

    def fsync(descriptor):
        rename(path, '{"dynamic_on": true, "eps": 3}')
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert not switch_off(path, digest)
    assert path.read_text() == '{"dynamic_on": true, "eps": 3}'
    assert [entry.name for entry in path.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize("text", ['{"dynamic_on": false}', "{}"])
def test_switch_off_of_what_is_off_writes_nothing(path, text):
    path.write_text(text)
    before = path.stat()
    assert not switch_off(path, digest_of(text.encode()))
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_switch_off_goes_through_a_symbolic_link(path, tmp_path):
    path.write_text('{"dynamic_on": true}')
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert switch_off(link, digest_of(path.read_bytes()))
    assert link.is_symlink()
    assert path.read_text() == '{"dynamic_on": false}'


def test_switch_off_that_fails_leaves_the_old_file(path, monkeypatch):
    path.write_text('{"dynamic_on": true}')

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        switch_off(path, digest_of(path.read_bytes()))
    assert path.read_text() == '{"dynamic_on": true}'
    assert [entry.name for entry in path.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"a": 1, "k": true}', "true"),
        ('{"a": {"k": 1}, "b": ["k", 2], "k": 3}', "3"),
        ('{"a": "k", "k":"x:y"}', '"x:y"'),
        ('{"k": {"k": 1}}', None),
        ('{"k": [1]}', None),
        ("{}", None),
    ],
)
def test_the_place_of_a_value(text, word):
    span = value_span(text, "k")
    assert (None if span is None else text[slice(*span)]) == word
