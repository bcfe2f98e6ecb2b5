#!/bin/sh
# Adds what this node has compiled to the directory that all nodes read. Run it once on each node, when the job has ended.
#
#   mpirun -n NODES --map-by node publish.sh
#
# OCLCACHE_SYSTEM_DIRS and NODE_LOCAL have the meaning that they have for rank.sh.
set -eu
shared=${OCLCACHE_SYSTEM_DIRS:?is not set: the directory of entries that all nodes see}
export OCLCACHE_DIR=${NODE_LOCAL:-${TMPDIR:-/tmp}}/oclcache-$(id -u)
export OCLCACHE_SYSTEM_DIRS=none

oclcache bake
if [ -z "$(oclcache list)" ]; then exit 0; fi
archive=$OCLCACHE_DIR/kernels.tar.zst
trap 'rm -f "$archive"' EXIT
oclcache export "$archive"
# An archive that this cache exported needs no --trust.
oclcache import --system "$shared" "$archive"
