//! The integration tests: programs of their own processes, through a loader, on the stub driver and on real drivers.
//!
//! Real drivers and tools are those that `ci/test` found and named in OCLCACHE_TEST_ variables; a test whose driver is not
//! there says so by name and does nothing else.

mod support;

mod archive;
mod audit;
mod autobake;
mod bake;
mod caches;
mod clear;
mod cold;
mod command;
mod config;
mod copies;
mod counting;
mod damage;
mod differ;
mod differential;
mod doctor;
mod documents;
mod doors;
mod explain;
mod extract;
mod functions;
mod hostile;
mod identity;
mod includes;
mod inputs;
mod install;
mod journal;
mod limits;
mod modes;
mod neighbors;
mod opened_later;
mod opens;
mod policy;
mod privilege;
mod process;
mod programs;
mod report;
mod run;
mod sentinel;
mod shells;
mod shown;
mod snapshots;
mod stack;
mod starving;
mod stats;
mod switches;
mod terminators;
mod texts;
mod tiers;
mod unwinding;
mod variables;
mod verdicts;
mod versions;
mod waiting;
mod words;
