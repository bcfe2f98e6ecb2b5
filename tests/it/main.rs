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
mod command_robustness;
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
mod files_opened;
mod foreign_files;
mod functions;
mod hostile;
mod hostile_texts;
mod identity;
mod includes;
mod inputs;
mod install;
mod intel_gpu;
mod journal;
mod limits;
mod live;
mod load_guard;
mod neighbors;
mod opened_later;
mod output_snapshots;
mod policy;
mod privilege;
mod process;
mod programs;
mod report;
mod run;
mod shells;
mod snapshots;
mod stack;
mod starving;
mod stats;
mod stub_outcomes;
mod switches;
mod terminators;
mod tiers;
mod tools;
mod unreadable;
mod unwinding;
mod variables;
mod verify_and_must_hit;
mod versions;
mod waiting;
