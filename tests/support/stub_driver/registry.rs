//! Handles: which are live, what they stand for, and their reference counts.
//!
//! A handle is the address of a two-word head: the dispatch table, and what a loader of ICD 2.0 gave for it. Heads are never given back to
//! the allocator but used again, last out first in: a stale handle is answered with the right error code, and an
//! address soon stands for another object, as with real drivers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::abi::Handle;
use crate::fork_safety::Mutex;

/// By what an object is dispatched. Dependent objects inherit it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Head {
    pub table: usize,
    pub loader_data: usize,
}

impl Head {
    /// That of a live object.
    pub fn of(object: Handle) -> Self {
        // SAFETY: handles are addresses of heads, which are never given back.
        unsafe { object.cast::<Self>().read_volatile() }
    }

    /// Makes it that of an object.
    pub fn put(self, object: Handle) {
        // SAFETY: as above. Loaders do this before they let the application use the object.
        unsafe { object.cast::<Self>().write_volatile(self) }
    }
}

struct Entry<T> {
    object: Arc<T>,
    /// References that the application holds.
    references: u32,
    /// References that dependent objects hold.
    holds: u32,
}

struct Inner<T> {
    live: HashMap<usize, Entry<T>>,
    free: Vec<usize>,
}

/// All live objects of one kind.
pub struct Registry<T: 'static>(Mutex<Option<Inner<T>>>);

impl<T> Registry<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn with<R>(&self, action: impl FnOnce(&mut Inner<T>) -> R) -> R {
        let mut inner = self.0.lock();
        action(inner.get_or_insert_with(|| Inner {
            live: HashMap::new(),
            free: Vec::new(),
        }))
    }

    /// A new object with one reference, which depends on another.
    pub fn insert(&self, object: Arc<T>, parent: Handle) -> Handle {
        self.insert_root(object, Head::of(parent))
    }

    /// A new object that depends on none.
    pub fn insert_root(&self, object: Arc<T>, head: Head) -> Handle {
        self.with(|inner| {
            let address = match inner.free.pop() {
                Some(address) => address,
                None => Box::leak(Box::new(head)) as *mut Head as usize,
            };
            head.put(address as Handle);
            let entry = Entry {
                object,
                references: 1,
                holds: 0,
            };
            inner.live.insert(address, entry);
            address as Handle
        })
    }

    pub fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.with(|inner| {
            let entry = inner.live.get(&(handle as usize))?;
            Some(entry.object.clone())
        })
    }

    pub fn retain(&self, handle: Handle) -> bool {
        self.with(|inner| match inner.live.get_mut(&(handle as usize)) {
            Some(entry) if entry.references > 0 => {
                entry.references += 1;
                true
            }
            _ => false,
        })
    }

    /// Gives one of the application's references back; false if it has none.
    pub fn release(&self, handle: Handle) -> bool {
        self.drop_one(handle as usize, |entry| &mut entry.references)
    }

    /// The application's references and those of dependent objects.
    pub fn counts(&self, handle: Handle) -> (u32, u32) {
        self.with(|inner| {
            let entry = inner.live.get(&(handle as usize));
            entry.map_or((0, 0), |entry| (entry.references, entry.holds))
        })
    }

    /// Keeps an object alive for a dependent one.
    pub fn hold(&'static self, handle: Handle) -> Option<Hold<T>> {
        let address = handle as usize;
        self.with(|inner| {
            let entry = inner.live.get_mut(&address)?;
            entry.holds += 1;
            Some(Hold {
                registry: self,
                address,
                object: entry.object.clone(),
            })
        })
    }

    fn drop_one(&self, address: usize, which: fn(&mut Entry<T>) -> &mut u32) -> bool {
        // The object is dropped outside the lock: it may hold objects of its own.
        let (found, _last) = self.with(|inner| {
            let Some(entry) = inner.live.get_mut(&address) else {
                return (false, None);
            };
            if *which(entry) == 0 {
                return (false, None);
            }
            *which(entry) -= 1;
            if entry.references > 0 || entry.holds > 0 {
                return (true, None);
            }
            let last = inner.live.remove(&address);
            inner.free.push(address);
            (true, last)
        });
        found
    }
}

/// A dependent object's reference.
pub struct Hold<T: 'static> {
    registry: &'static Registry<T>,
    address: usize,
    object: Arc<T>,
}

impl<T> Hold<T> {
    pub fn handle(&self) -> Handle {
        self.address as Handle
    }

    pub fn object(&self) -> &T {
        &self.object
    }
}

impl<T> Drop for Hold<T> {
    fn drop(&mut self) {
        self.registry
            .drop_one(self.address, |entry| &mut entry.holds);
    }
}
