//! Libraries in a driver's identity that this process added: layers of a loader. The baker opens the driver without them.

use super::Driver;
use super::loaded;
use crate::key::ingredients::{Ingredient, Kind};
use crate::linker_lock;

impl Driver {
    /// Whether these ingredients name a layer of a loader, as far as the dynamic linker answers: else they may.
    pub fn has_additions(&self, ingredients: &[Ingredient]) -> bool {
        if self.layer.is_none() {
            return false;
        }
        let has_added = || self.has_added(ingredients);
        linker_lock::complete(has_added).unwrap_or(true)
    }

    fn has_added(&self, ingredients: &[Ingredient]) -> bool {
        let of_driver = loaded::closure(loaded::objects(), self.is_own_library());
        let objects = loaded::objects();
        let mut added = objects.iter().filter(|object| object.is_layer_of_another());
        added.any(|object| {
            let name = String::from_utf8_lossy(&object.name);
            let is_keyed = |one: &Ingredient| one.kind == Kind::Driver && one.name == name;
            ingredients.iter().any(is_keyed) && !of_driver.iter().any(|own| own.path == object.path)
        })
    }
}
