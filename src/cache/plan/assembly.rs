//! The ingredients of a call in the order of the key, and its recipe.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::CallInputs;
use super::text::CallText;
use crate::cache::devices::{self, chosen};
use crate::config::lasting_executable;
use crate::driver::FloatState;
use crate::key::include::Closure;
use crate::key::ingredients::{Ingredient, Key, Kind, sha256};
use crate::key::options::Options;
use crate::outcome::Bypass;
use crate::shadow::{Base, Constants, Operation, Recipe};

/// The ingredients of the call itself, in the order of the key. They follow those of devices and driver there. A change of the order
/// changes all keys.
pub(super) struct OwnIngredients {
    before_surroundings: Vec<Ingredient>,
    behind_surroundings: Vec<Ingredient>,
}

impl OwnIngredients {
    pub(super) fn of(
        inputs: &CallInputs,
        targets: &[usize],
        text: &CallText,
    ) -> Result<OwnIngredients, Bypass> {
        let driver = inputs.driver;
        let mut before = base_ingredients(inputs, text);
        before.push(match &text.options {
            Some(options) => Ingredient::new(Kind::Options, "given", sha256(&options.normalized)),
            None => Ingredient::new(Kind::Options, "NULL", []),
        });
        push_operation(&mut before, inputs)?;
        before.extend(text.closure.ingredients());
        if text.has_debug {
            let directory = std::env::current_dir().map_err(|_| Bypass::ReadsFile)?;
            let directory = directory.as_os_str().as_bytes();
            before.push(Ingredient::new(Kind::WorkingDirectory, "", directory));
        }
        if targets.len() < inputs.devices.len() {
            before.extend(chosen(driver, &inputs.devices, targets));
        }
        let previous = inputs.previous.iter();
        before.extend(previous.map(|previous| Ingredient::new(Kind::Previous, "", previous.key.0)));
        let mut behind: Vec<Ingredient> = driver.float_state()?.collect();
        if driver.profile.looks_at_executable {
            let name = lasting_executable().ok_or(Bypass::UnidentifiedDriver)?;
            behind.push(Ingredient::new(Kind::Executable, "", name));
        }
        Ok(OwnIngredients {
            before_surroundings: before,
            behind_surroundings: behind,
        })
    }

    /// All of them, without those of the surroundings.
    pub(super) fn all(&self) -> impl Iterator<Item = &Ingredient> {
        self.before_surroundings
            .iter()
            .chain(&self.behind_surroundings)
    }

    /// All of them, with those of the surroundings.
    pub(super) fn with(self, surroundings: Vec<Ingredient>) -> Vec<Ingredient> {
        let mut all = self.before_surroundings;
        all.extend(surroundings);
        all.extend(self.behind_surroundings);
        all
    }
}

fn base_ingredients(inputs: &CallInputs, text: &CallText) -> Vec<Ingredient> {
    match &inputs.base {
        Base::Source(_) => vec![text.source.ingredient()],
        Base::Il(code, constants) => {
            let digest = inputs.il_digest.unwrap_or_else(|| sha256(code));
            il_ingredients(digest, constants)
        }
        Base::Linked(inputs) => input_ingredients(inputs),
    }
}

fn push_operation(all: &mut Vec<Ingredient>, inputs: &CallInputs) -> Result<(), Bypass> {
    match &inputs.operation {
        Operation::Build => {}
        Operation::Compile(_) => all.push(Ingredient::new(Kind::Operation, "", *b"compile")),
        Operation::Link(of_context) => {
            all.push(Ingredient::new(Kind::Operation, "", *b"link"));
            // An input may have been compiled for another of several devices that are alike.
            let targets = devices::targets(inputs.driver, of_context, &inputs.arguments)?;
            if targets.len() < of_context.len() {
                all.extend(chosen(inputs.driver, of_context, &targets));
            }
        }
    }
    all.extend(inputs.operation.headers().iter().map(|header| {
        let name = String::from_utf8_lossy(header.name.as_bytes());
        Ingredient::new(Kind::Header, name, sha256(&header.source))
    }));
    Ok(())
}

fn il_ingredients(digest: [u8; 32], constants: &Constants) -> Vec<Ingredient> {
    let code = Ingredient::new(Kind::Il, "", digest);
    let constants = constants
        .iter()
        .map(|(id, value)| Ingredient::new(Kind::Constant, id.to_string(), value.as_slice()));
    [code].into_iter().chain(constants).collect()
}

fn input_ingredients(inputs: &[Arc<Recipe>]) -> Vec<Ingredient> {
    let inputs = inputs.iter().enumerate();
    inputs
        .map(|(index, input)| Ingredient::new(Kind::Input, index.to_string(), input.key.0))
        .collect()
}

/// The recipe of a call that has this key.
pub(super) fn recipe(
    key: Key,
    inputs: CallInputs,
    options: Option<&Options>,
    closure: Closure,
    float_state: FloatState,
) -> Recipe {
    let earlier = || inputs.base.inputs().iter().chain(&inputs.previous);
    Recipe {
        key,
        texts: (earlier().map(|recipe| recipe.texts))
            .fold(own_texts(&inputs), usize::saturating_add),
        weight: 1 + earlier().map(|recipe| recipe.weight).sum::<usize>(),
        depth: 1 + earlier().map(|recipe| recipe.depth).max().unwrap_or(0),
        include_dirs: include_dirs(options, earlier()),
        closure,
        base: inputs.base,
        operation: inputs.operation,
        arguments: inputs.arguments,
        named: inputs.named,
        float_state,
        previous: inputs.previous,
    }
}

fn own_texts(inputs: &CallInputs) -> usize {
    let base = match &inputs.base {
        Base::Source(text) | Base::Il(text, _) => text.len(),
        Base::Linked(_) => 0,
    };
    let headers = inputs.operation.headers().iter();
    headers.fold(base, |sum, header| sum.saturating_add(header.source.len()))
}

/// All directories of the options in which headers were looked for. Their spelling is not in the key. The working directory is none of
/// them: compilers show it in debug information alone, with which it is in the key.
fn include_dirs<'a>(
    options: Option<&Options>,
    earlier: impl Iterator<Item = &'a Arc<Recipe>>,
) -> Vec<Vec<u8>> {
    let own = options.iter().flat_map(|options| &options.include_dirs);
    let earlier = earlier.flat_map(|recipe| &recipe.include_dirs);
    own.chain(earlier).cloned().collect()
}
