"""What a directory and a bucket promise alike: whole objects or none, in order, and nothing left of broken ones."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from gateway.snapshots import bucket_objects, directory_objects
from gateway.snapshots.objects import Missing, Objects

PART = 5 * 1024 * 1024  # the least that a part of an upload may have


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_objects, "PART_BYTES", PART)


def test_an_object_is_what_was_put_whatever_its_size(objects: Objects) -> None:
    for size in (0, 1, PART - 1, PART, PART + 1, 2 * PART + 7):
        data = random.Random(size).randbytes(size)
        taken = objects.put("a/b", (data[begin : begin + 1_000_000] for begin in range(0, size, 1_000_000)))
        assert taken == objects.size("a/b") == objects.takes(size)
        assert b"".join(objects.get("a/b")) == data
        assert b"".join(objects.get("a/b", 1_000_003)) == data
        assert {len(part) for part in [*objects.get("a/b", PART // 8)][:-1]} <= {PART // 8}


def test_what_is_not_there_is_missing_and_removing_it_is_no_error(objects: Objects) -> None:
    with pytest.raises(Missing):
        next(objects.get("a/b"))
    assert objects.size("a/b") is None
    objects.remove(["a/b"])
    objects.remove([])
    assert list(objects.names()) == []


def test_names_come_in_order_and_only_those_of_the_directory(objects: Objects) -> None:
    names = [f"blobs/{n % 7}/{n:04d}" for n in range(30)] + ["snapshots/a.manifest"]
    for name in names:
        objects.put(name, [name.encode()])
    assert [name for name, _ in objects.names("blobs/")] == sorted(names[:-1])
    assert list(objects.names("snapshots/")) == [("snapshots/a.manifest", objects.takes(20))]
    objects.remove(names[:10])
    assert [name for name, _ in objects.names()] == sorted(names[10:])
    objects.erase()
    assert list(objects.names()) == []


@pytest.mark.parametrize("size", [1000, 2 * PART + 1])
def test_an_object_appears_when_it_is_whole_and_what_breaks_off_leaves_none(objects: Objects, size: int) -> None:
    def breaking() -> Iterator[bytes]:
        yield bytes(size)
        assert objects.size("a/b") is None
        assert list(objects.names()) == []
        raise InterruptedError("broken")

    with pytest.raises(Exception, match=r"broken|Interrupted|cannot be used"):
        objects.put("a/b", breaking())
    assert objects.size("a/b") is None
    objects.tidy()
    objects.erase()


def test_what_a_killed_process_left_of_an_object_is_tidied_up(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed does not give up its upload, nor remove its file."""

    class Killed(BaseException):
        pass

    def breaking() -> Iterator[bytes]:
        yield bytes(2 * PART + 1)
        raise Killed

    with monkeypatch.context() as dead:
        dead.setattr("gateway.snapshots.bucket.Bucket.give_up_upload", lambda *_: None)
        dead.setattr(directory_objects.Path, "unlink", lambda *_, **__: None)
        with pytest.raises(Killed):
            objects.put("blobs/b", breaking())
    assert _unfinished(objects) == 1
    assert list(objects.names()) == []
    objects.tidy()
    assert _unfinished(objects) == 0


def _unfinished(objects: Objects) -> int:
    if isinstance(objects, bucket_objects.BucketObjects):
        return len(list(objects._bucket.uploads(objects._prefix)))
    assert isinstance(objects, directory_objects.DirectoryObjects)
    return len(list(objects._directory.rglob("*.half")))


def test_threads_put_and_read_side_by_side(objects: Objects) -> None:
    wrong: list[int] = []

    def work(n: int) -> None:
        data = bytes([n]) * 10_000
        objects.put(f"x/{n}", [data])
        if b"".join(objects.get(f"x/{n}")) != data:
            wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(objects.threads)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (wrong, len(list(objects.names("x/")))) == ([], objects.threads)
