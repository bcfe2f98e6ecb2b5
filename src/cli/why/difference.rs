//! What is compared to explain a miss, and what one difference is.

use crate::key::ingredients::Ingredient;

/// One difference.
pub struct Difference {
    /// The kind of the ingredient.
    pub kind: String,
    /// The name of the ingredient.
    pub name: String,
    /// The value in the entry; None if it has no such ingredient.
    pub before: Option<String>,
    /// The value in the build that missed.
    pub after: Option<String>,
    /// The difference in a few words.
    pub words: String,
}

/// One of the two builds that are compared.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The ingredients of its key.
    pub ingredients: &'a [Ingredient],
    /// The options, as far as they may be shown.
    pub options: Option<&'a [u8]>,
    /// The driver's family.
    pub family: &'a str,
    /// The kernels of the program.
    pub kernel_names: &'a [Vec<u8>],
}
