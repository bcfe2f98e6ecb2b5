#!/bin/sh
# Runs one rank of a job, with a cache on the node's disk and a directory that all nodes read.
#
#   mpirun -n 64 rank.sh PROGRAM ARGUMENTS...
#
# OCLCACHE_SYSTEM_DIRS is that directory; only you and root may write it and the directories above it. NODE_LOCAL is a directory on the
# local disk; set it if TMPDIR is not on one.
set -eu
: "${OCLCACHE_SYSTEM_DIRS:?is not set: the directory of entries that all nodes see}"
export OCLCACHE_DIR=${NODE_LOCAL:-${TMPDIR:-/tmp}}/oclcache-$(id -u)
# The first rank that compiles stores the entry for which the others wait, also on PoCL, and no process stays behind.
export OCLCACHE_RECORD=${OCLCACHE_RECORD:-inline}
export OCLCACHE_AUTOBAKE=0
exec oclcache run -q "$@"
