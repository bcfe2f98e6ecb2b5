//! Whether the baker can repeat the call of a miss. Decided at the miss.
//!
//! The baker must have everything that is in the key. Otherwise the miss stores no recipe and reports why: every baker would try a
//! recipe that cannot be baked, and the user would not learn why nothing is stored. The baker itself finds what only a later change
//! can spoil, such as an edited header.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::autobake;
use super::plan::Plan;
use crate::driver::environment::has_changed;
use crate::driver::{Driver, FloatState};
use crate::key::ingredients::{Ingredient, Kind};
use crate::outcome::NotBakeable;
use crate::store::recipe::StoredRecipe;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};
use crate::trust;

/// Why no baker can repeat a call of these ingredients, judged by the surroundings.
pub(super) fn refusal(driver: &Driver, plan: &Plan) -> Option<NotBakeable> {
    let ingredients = plan.ingredients();
    ingredients.iter().find_map(of_ingredient).or_else(|| {
        let has_additions = driver.has_additions(&ingredients);
        has_additions.then_some(NotBakeable::AddedLibrary)
    })
}

/// Why the baker cannot reproduce this ingredient. The match is over all kinds, so that a new kind cannot be forgotten.
fn of_ingredient(one: &Ingredient) -> Option<NotBakeable> {
    match one.kind {
        // They are in the recipe.
        Kind::Source
        | Kind::Options
        | Kind::Operation
        | Kind::Header
        | Kind::Il
        | Kind::Constant
        | Kind::Input
        | Kind::Previous => None,
        // The recipe has the headers. [`of_directory`] judges their place.
        Kind::Include | Kind::WorkingDirectory => None,
        // They belong to the machine.
        Kind::Device | Kind::Processor => None,
        Kind::Driver | Kind::Environment if has_changed(one) => {
            Some(NotBakeable::EnvironmentChanged)
        }
        Kind::Environment => {
            autobake::is_removed(OsStr::new(&one.name)).then_some(NotBakeable::NotInherited)
        }
        Kind::Executable => {
            let name = OsStr::from_bytes(&one.value);
            let is_name = Path::new(name).file_name() == Some(name);
            (!is_name).then_some(NotBakeable::ProgramName)
        }
        Kind::Driver | Kind::Functions => {
            (!one.is_reproducible()).then_some(NotBakeable::AddedLibrary)
        }
        Kind::FloatingPoint => {
            (!FloatState::can_enter(one)).then_some(NotBakeable::FloatingPointState)
        }
    }
}

/// Why a recipe cannot be repeated, judged by its content.
pub(super) fn of_recipe(store: &Store, recipe: &StoredRecipe, plan: &Plan) -> Option<NotBakeable> {
    let parts = recipe.devices.iter().filter(|device| device.is_part);
    if parts.count() > 0 && recipe.devices.len() > 1 {
        return Some(NotBakeable::DevicePart);
    }
    let has_recipe = |key| match store.look_up(&key) {
        Lookup::Found(entry, _) | Lookup::Pending(entry) => entry.recipe().is_ok(),
        _ => false,
    };
    if !recipe.needed().into_iter().all(has_recipe) {
        return Some(NotBakeable::InputNotStored);
    }
    let ingredients = plan.ingredients();
    let options = plan.options.as_ref();
    let include_dirs = options.map_or(&[][..], |options| &options.include_dirs);
    // Otherwise the baker could work elsewhere, with the headers where they are or in places of its own.
    let needs_directory = !recipe.has_only_absolute_paths(&ingredients, include_dirs)
        && (recipe.needs_directory(&ingredients)
            || options.is_some_and(|options| {
                let others = vec![Vec::new(); options.include_dirs.len()];
                options.respelled(&others).is_none()
            }));
    let directory = recipe.directory(&ingredients).filter(|_| needs_directory);
    directory
        .is_some_and(|directory| !trust::can_be_entered(&directory))
        .then_some(NotBakeable::UnsafeDirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_baker_has_not_is_refused_by_each_kind() {
        let of = |kind, name: &str, value: &str| of_ingredient(&Ingredient::new(kind, name, value));
        let changed = "cl.cfg when the driver was opened";
        for (kind, name, value, expected) in [
            (Kind::Source, "", "digest", None),
            (Kind::Include, "/usr/include/a.h", "digest", None),
            (Kind::WorkingDirectory, "", "/home/u", None),
            (Kind::Driver, "cl.cfg", "digest", None),
            (
                Kind::Driver,
                changed,
                "digest",
                Some(NotBakeable::EnvironmentChanged),
            ),
            (Kind::Environment, "POCL_DEVICES", "basic", None),
            (
                Kind::Environment,
                "OPENCL_PROGRAM_COMPILE_OPTIONS",
                "-w",
                None,
            ),
            (
                Kind::Environment,
                "A, not there when the driver was opened",
                "",
                Some(NotBakeable::EnvironmentChanged),
            ),
            (
                Kind::Environment,
                "LD_AUDIT",
                "a.so",
                Some(NotBakeable::NotInherited),
            ),
            (
                Kind::Environment,
                "OPENCL_LAYER_X",
                "1",
                Some(NotBakeable::NotInherited),
            ),
            (Kind::Functions, "variants of libm.so.6", "exp 0x1", None),
            (
                Kind::Functions,
                "libx.so",
                "getenv 0x1",
                Some(NotBakeable::AddedLibrary),
            ),
            (
                Kind::FloatingPoint,
                "MXCSR when the driver was opened",
                "0x3f80",
                Some(NotBakeable::FloatingPointState),
            ),
            (Kind::Executable, "", "blur", None),
            (Kind::Executable, "", "a/b", Some(NotBakeable::ProgramName)),
            (Kind::Executable, "", "..", Some(NotBakeable::ProgramName)),
            (Kind::Executable, "", "", Some(NotBakeable::ProgramName)),
        ] {
            assert_eq!(of(kind, name, value), expected, "{kind:?} {name} {value}");
        }
    }
}
