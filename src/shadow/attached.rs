//! The kernels of one program, counted when they come and go. To count them in the table of all kernels took 3.5 s for the reference counts
//! of 8000 programs with 10 kernels each, under the one lock (measured on the stub driver).

use std::sync::Arc;

/// The kernels of a program that the application holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldKernels {
    /// All of them.
    pub all: usize,
    /// Those that are of a P'.
    pub inner: usize,
}

/// The kernels of one program.
pub struct AttachedKernels<Inner> {
    held: HeldKernels,
    /// Each P' that has kernels, and how many. A program has more than one only after a build over kernels.
    inners: Vec<(Arc<Inner>, usize)>,
}

impl<Inner> AttachedKernels<Inner> {
    pub const fn new() -> AttachedKernels<Inner> {
        AttachedKernels {
            held: HeldKernels { all: 0, inner: 0 },
            inners: Vec::new(),
        }
    }

    /// How many there are.
    pub fn held(&self) -> HeldKernels {
        self.held
    }

    /// Each P' that has kernels.
    pub fn inners(&self) -> impl Iterator<Item = &Arc<Inner>> {
        self.inners.iter().map(|(inner, _)| inner)
    }

    /// Counts one more kernel. `is_inner`: see [`HeldKernels::inner`].
    pub fn add(&mut self, is_inner: bool, inner: Option<&Arc<Inner>>) {
        self.held.all += 1;
        self.held.inner += usize::from(is_inner);
        let Some(inner) = inner else {
            return;
        };
        match self.position(inner) {
            Some(index) => self.inners[index].1 += 1,
            None => self.inners.push((inner.clone(), 1)),
        }
    }

    /// Counts one kernel less that was counted by the same arguments. These still hold P', so it is not dropped here.
    pub fn remove(&mut self, is_inner: bool, inner: Option<&Arc<Inner>>) {
        self.held.all -= 1;
        self.held.inner -= usize::from(is_inner);
        if let Some(index) = inner.and_then(|inner| self.position(inner)) {
            self.inners[index].1 -= 1;
            if self.inners[index].1 == 0 {
                self.inners.swap_remove(index);
            }
        }
    }

    /// The newest first: it gets the kernels.
    fn position(&self, inner: &Arc<Inner>) -> Option<usize> {
        self.inners
            .iter()
            .rposition(|(known, _)| Arc::ptr_eq(known, inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_a_look_at_all_kernels_finds() {
        let programs: Vec<Arc<u8>> = (0..3).map(Arc::new).collect();
        let mut attached = AttachedKernels::new();
        let mut kernels: Vec<(bool, Option<&Arc<u8>>)> = Vec::new();
        let mut random = 1_u32;
        for _ in 0..2000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (random >> 16) as usize;
            if number.is_multiple_of(2) || kernels.is_empty() {
                let inner = programs.get(number / 2 % 4);
                let kernel = (inner.is_some(), inner);
                attached.add(kernel.0, kernel.1);
                kernels.push(kernel);
            } else {
                let (is_inner, inner) = kernels.swap_remove(number / 2 % kernels.len());
                attached.remove(is_inner, inner);
            }
            let inner = kernels.iter().filter(|kernel| kernel.0).count();
            let all = kernels.len();
            assert_eq!(attached.held(), HeldKernels { all, inner });
            let has_kernels =
                |program: &&Arc<u8>| kernels.iter().any(|kernel| kernel.1 == Some(*program));
            let mut found: Vec<u8> = attached.inners().map(|inner| **inner).collect();
            found.sort_unstable();
            let expected: Vec<u8> = programs.iter().filter(has_kernels).map(|p| **p).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn many_kernels_of_one_program_are_one_step() {
        let program = Arc::new(());
        let mut attached = AttachedKernels::new();
        for count in 1..=10_000 {
            attached.add(true, Some(&program));
            assert_eq!((attached.held().all, attached.inners().count()), (count, 1));
        }
        for _ in 0..10_000 {
            attached.remove(true, Some(&program));
        }
        assert_eq!(attached.held(), HeldKernels::default());
        assert_eq!(Arc::strong_count(&program), 1);
    }
}
