"""A file system that shows another directory, without file locks and without shared mappings, as some network file systems are.

    lockless.py DIRECTORY MOUNTPOINT

Served by python3-fusepy until it is unmounted.
"""

import errno
import os
import sys

import fusepy as fuse


class Lockless(fuse.Operations):
    def __init__(self, root):
        self.root = os.fsencode(root)

    def path(self, path):
        return self.root + os.fsencode(path)

    def getattr(self, path, fh=None):
        found = os.lstat(self.path(path)) if fh is None else os.fstat(fh)
        names = ("mode", "nlink", "uid", "gid", "size", "blocks", "ino")
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") / 1e9 for name in ("atime", "mtime", "ctime")}
        return {**{f"st_{name}": getattr(found, f"st_{name}") for name in names}, **times}

    def access(self, path, mode):
        if not os.access(self.path(path), mode):
            raise fuse.FuseOSError(errno.EACCES)

    def readdir(self, path, fh):
        return [".", "..", *map(os.fsdecode, os.listdir(self.path(path)))]

    def readlink(self, path):
        return os.fsdecode(os.readlink(self.path(path)))

    def symlink(self, target, source):
        os.symlink(os.fsencode(source), self.path(target))

    def link(self, target, source):
        os.link(self.path(source), self.path(target))

    def rename(self, old, new):
        os.rename(self.path(old), self.path(new))

    def mkdir(self, path, mode):
        os.mkdir(self.path(path), mode)

    def rmdir(self, path):
        os.rmdir(self.path(path))

    def unlink(self, path):
        os.unlink(self.path(path))

    def chmod(self, path, mode):
        os.chmod(self.path(path), mode)

    def chown(self, path, uid, gid):
        os.chown(self.path(path), uid, gid)

    def utimens(self, path, times=None):
        os.utime(self.path(path), times, follow_symlinks=False)

    def truncate(self, path, length, fh=None):
        os.truncate(self.path(path) if fh is None else fh, length)

    def statfs(self, path):
        found = os.statvfs(self.path(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name not in ("f_fsid", "f_flag")}

    def create(self, path, mode, fi=None):
        return os.open(self.path(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path, flags):
        return os.open(self.path(path), flags & ~os.O_APPEND)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def flush(self, path, fh):
        return 0

    def fsync(self, path, datasync, fh):
        return os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def lock(self, path, fh, command, lock):
        raise fuse.FuseOSError(errno.ENOLCK)


if __name__ == "__main__":
    fuse.FUSE(Lockless(sys.argv[1]), sys.argv[2], foreground=True, direct_io=True, use_ino=True, default_permissions=True, allow_other=True)
