#!/bin/sh
# One rank of a job: a cache on this node's disk, over a directory that all nodes read.
#
#   mpirun -n 64 rank.sh PROGRAM ARGUMENTS...
#
# SHARED names that directory; nobody but you and root may write it or a directory above it. NODE_LOCAL names the local disk where
# TMPDIR does not.
set -eu
: "${SHARED:?is not set: the directory of entries that all nodes see}"
export OCLCACHE_DIR=${NODE_LOCAL:-${TMPDIR:-/tmp}}/oclcache-$(id -u)
export OCLCACHE_SYSTEM_DIRS=$SHARED
# publish.sh bakes when the job has ended.
export OCLCACHE_AUTOBAKE=0
exec oclcache run -q "$@"
