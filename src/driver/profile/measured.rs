//! What `oclcache doctor --qualify` has measured on one driver, and the file of it.
//!
//! ```text
//! file = a frame (see `framing`) of (version of oclcache, digest of the driver's identity, [`MeasuredBehavior`])
//! ```
//!
//! It replaces only facts of the driver's row that are in no key (see [`Behavior`]): a build has the same key with it and without it.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Behavior, KernelFactsTime, Rebuild, RecordTime};
use crate::framing;
use crate::key::ingredients::Key;

const MAGIC: &[u8] = b"oclcprf1";
/// Another version may measure otherwise, and ask otherwise.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A measured [`Behavior`]. None: it was not measured, so the row decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredBehavior {
    /// See [`Behavior::record`].
    pub record: Option<RecordTime>,
    /// See [`Behavior::kernel_facts`].
    pub kernel_facts: Option<KernelFactsTime>,
    /// See [`Behavior::context_counts_programs`].
    pub context_counts_programs: Option<bool>,
    /// See [`Behavior::kernels_keep_program`].
    pub kernels_keep_program: Option<bool>,
    /// See [`Behavior::sub_devices_are_their_root`].
    pub sub_devices_are_their_root: Option<bool>,
    /// See [`Behavior::rebuild`].
    pub rebuild: Option<Rebuild>,
    /// See [`Behavior::copies_builds`].
    pub copies_builds: Option<bool>,
}

impl MeasuredBehavior {
    /// The behavior of the driver with this row.
    pub fn over(&self, row: Behavior) -> Behavior {
        Behavior {
            record: self.record.unwrap_or(row.record),
            kernel_facts: self.kernel_facts.unwrap_or(row.kernel_facts),
            context_counts_programs: self.context_counts_programs.or(row.context_counts_programs),
            kernels_keep_program: self
                .kernels_keep_program
                .unwrap_or(row.kernels_keep_program),
            sub_devices_are_their_root: self
                .sub_devices_are_their_root
                .unwrap_or(row.sub_devices_are_their_root),
            rebuild: self.rebuild.unwrap_or(row.rebuild),
            copies_builds: self.copies_builds.unwrap_or(row.copies_builds),
        }
    }

    /// What was measured alike on both.
    pub fn common(&self, other: &MeasuredBehavior) -> MeasuredBehavior {
        fn same<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.filter(|one| other.as_ref() == Some(one))
        }
        MeasuredBehavior {
            record: same(self.record, other.record),
            kernel_facts: same(self.kernel_facts, other.kernel_facts),
            context_counts_programs: same(
                self.context_counts_programs,
                other.context_counts_programs,
            ),
            kernels_keep_program: same(self.kernels_keep_program, other.kernels_keep_program),
            sub_devices_are_their_root: same(
                self.sub_devices_are_their_root,
                other.sub_devices_are_their_root,
            ),
            rebuild: same(self.rebuild, other.rebuild),
            copies_builds: same(self.copies_builds, other.copies_builds),
        }
    }

    /// The file for the driver with this identity.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn encode(&self, identity: &Key) -> io::Result<Vec<u8>> {
        framing::encode(MAGIC, &(VERSION, identity, self))
    }

    /// The measurements in a file. None if it is damaged, for another driver, or of another version of oclcache.
    pub fn decode(bytes: &[u8], identity: &Key) -> Option<MeasuredBehavior> {
        let (version, of, measured): (String, Key, MeasuredBehavior) =
            framing::decode(MAGIC, bytes)?;
        (version == VERSION && of == *identity).then_some(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::profile;

    #[test]
    fn what_was_measured_replaces_the_row_and_the_rest_stays() {
        let row = profile::named("pocl").behavior();
        assert_eq!(MeasuredBehavior::default().over(row), row);
        let measured = MeasuredBehavior {
            rebuild: Some(Rebuild::KeepsKernels),
            copies_builds: Some(false),
            ..MeasuredBehavior::default()
        };
        let expected = Behavior {
            rebuild: Rebuild::KeepsKernels,
            copies_builds: false,
            ..row
        };
        assert_eq!(measured.over(row), expected);
        let other = MeasuredBehavior {
            copies_builds: Some(true),
            ..measured
        };
        let common = MeasuredBehavior {
            copies_builds: None,
            ..measured
        };
        assert_eq!(measured.common(&other), common);
    }

    #[test]
    fn a_file_is_read_for_its_driver_and_its_version_only() {
        let measured = MeasuredBehavior {
            record: Some(RecordTime::Baked),
            ..MeasuredBehavior::default()
        };
        let [one, other] = [Key([1; 32]), Key([2; 32])];
        let bytes = measured.encode(&one).expect("memory");
        assert_eq!(MeasuredBehavior::decode(&bytes, &one), Some(measured));
        assert_eq!(MeasuredBehavior::decode(&bytes, &other), None);
        let newer = framing::encode(MAGIC, &("999.0.0", one, measured)).expect("memory");
        assert_eq!(MeasuredBehavior::decode(&newer, &one), None);
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert_eq!(MeasuredBehavior::decode(&damaged, &one), None, "{index}");
        }
    }
}
