//! What is compared to explain a miss, and what one difference is.

use crate::key::ingredients::Ingredient;

/// One difference.
pub struct Difference {
    /// The kind of the ingredients.
    pub kind: String,
    /// Their name.
    pub name: String,
    /// The value in the entry; None if it has no such ingredient.
    pub before: Option<String>,
    /// The value in the build that missed.
    pub after: Option<String>,
    /// All of it in a few words.
    pub words: String,
}

/// One of the two that are compared.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// What the key was made of.
    pub ingredients: &'a [Ingredient],
    /// The options as they may be shown.
    pub options: Option<&'a [u8]>,
    /// The driver's family.
    pub family: &'a str,
    /// The kernels of the program.
    pub kernel_names: &'a [Vec<u8>],
}
