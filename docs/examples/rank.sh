#!/bin/sh
# Runs one rank of a job, with a cache on the node's disk and a directory that all nodes read.
#
#   mpirun -n 64 rank.sh PROGRAM ARGUMENTS...
#
# SHARED is that directory; only you and root may write it and the directories above it. NODE_LOCAL is a directory on the local disk;
# set it if TMPDIR is not on one.
set -eu
: "${SHARED:?is not set: the directory of entries that all nodes see}"
export OCLCACHE_DIR=${NODE_LOCAL:-${TMPDIR:-/tmp}}/oclcache-$(id -u)
export OCLCACHE_SYSTEM_DIRS=$SHARED
# publish.sh bakes when the job has ended.
export OCLCACHE_AUTOBAKE=0
exec oclcache run -q "$@"
