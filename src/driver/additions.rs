//! Libraries in a driver's identity that this process added: layers of a loader. The baker opens the driver without them.

use super::Driver;
use super::loaded;
use crate::key::ingredients::{Ingredient, Kind};

impl Driver {
    /// Whether these ingredients name a layer of a loader.
    pub fn has_additions(&self, ingredients: &[Ingredient]) -> bool {
        if self.layer.is_none() {
            return false;
        }
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
