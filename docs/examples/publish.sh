#!/bin/sh
# Adds what this node has compiled to the directory that all nodes read: once on each node, when the job has ended.
#
#   mpirun -n NODES --map-by node publish.sh
#
# SHARED and NODE_LOCAL as for rank.sh.
set -eu
: "${SHARED:?is not set: the directory of entries that all nodes see}"
export OCLCACHE_DIR=${NODE_LOCAL:-${TMPDIR:-/tmp}}/oclcache-$(id -u)
export OCLCACHE_SYSTEM_DIRS=none

# What the group may write is not read by anybody.
umask 022
oclcache bake
from=$OCLCACHE_DIR/v1/entries
to=$SHARED/v1/entries
cd "$from"
find . -name '*.entry' | while read -r entry; do
    if [ -e "$to/$entry" ]; then continue; fi
    mkdir -p "$to/${entry%/*}"
    # Renamed into place, so that no rank of another job reads half of it. The node and the process are in the name.
    part=$to/$entry.$(hostname).$$
    cp "$entry" "$part"
    mv "$part" "$to/$entry"
done
