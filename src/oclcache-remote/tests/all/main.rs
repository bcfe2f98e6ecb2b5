//! Tests of the helper with real servers, which they start on 127.0.0.1 or in network namespaces of their own. `ci/remote` runs them.

mod cluster;
mod directory;
mod engines;
mod faults;
mod flows;
mod outbox;
mod revocation;
mod support;
mod trust;
mod versions;
