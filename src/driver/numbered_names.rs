//! Names of files for a key, where several directories have a file of one name: which comes first decides which one is run or loaded.

use std::collections::HashMap;

use crate::key::ingredients::Ingredient;

/// How often each name was given.
#[derive(Default)]
pub struct NumberedNames(HashMap<String, usize>);

impl NumberedNames {
    /// The name for the next file of this name: with a number if it is not the first. Equal files have different names, since the place
    /// of each in the order counts.
    pub fn next(&mut self, name: &str) -> String {
        let count = self.0.entry(name.to_owned()).or_default();
        *count += 1;
        match (*count, name.strip_suffix(Ingredient::OF_PROGRAM)) {
            (1, _) => name.to_owned(),
            // What the end of a name says stays there.
            (number, Some(name)) => format!("{name} ({number}){}", Ingredient::OF_PROGRAM),
            (number, None) => format!("{name} ({number})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_of_a_name_has_another_name() {
        let mut names = NumberedNames::default();
        let of_program = "a".to_owned() + Ingredient::OF_PROGRAM;
        for (name, expected) in [
            ("a", "a"),
            ("a", "a (2)"),
            ("b", "b"),
            ("a", "a (3)"),
            (&of_program, &of_program),
        ] {
            assert_eq!(names.next(name), expected);
        }
        assert!(names.next(&of_program).ends_with(Ingredient::OF_PROGRAM));
    }
}
