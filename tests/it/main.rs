//! The integration tests: programs of their own processes, through a loader, on the stub driver and on real drivers.
//!
//! Real drivers and tools are those that `ci/test` found and named in OCLCACHE_TEST_ variables; a test whose driver is not
//! there says so by name and does nothing else.

mod support;

mod autobake;
mod bake;
mod command;
mod copies;
mod counting;
mod damage;
mod differential;
mod doors;
mod explain;
mod hostile;
mod identity;
mod includes;
mod inputs;
mod journal;
mod limits;
mod modes;
mod neighbours;
mod opens;
mod policy;
mod privilege;
mod process;
mod programs;
mod report;
mod run;
mod sentinel;
mod snapshots;
mod stats;
mod switches;
mod texts;
mod tiers;
mod verdicts;
mod waiting;
