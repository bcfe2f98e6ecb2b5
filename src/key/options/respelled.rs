//! Options with other include directories.

use super::{DIRECTORY, Options};

impl Options {
    /// The options with other [include directories](Options::include_dirs), given one for each and without blanks. Both have the
    /// same key. None if the key has the directories as written.
    pub fn respelled(&self, directories: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut marks = 0;
        let mut respelled = Vec::new();
        let mut rest = self.normalized.as_slice();
        while let Some(at) = rest
            .windows(DIRECTORY.len())
            .position(|part| part == DIRECTORY)
        {
            respelled.extend_from_slice(&rest[..at]);
            respelled.extend(directories.get(marks)?);
            rest = &rest[at + DIRECTORY.len()..];
            marks += 1;
        }
        respelled.extend_from_slice(rest);
        (marks == self.include_dirs.len()).then_some(respelled)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn other_directories_take_the_place_of_those_that_are_not_in_the_key() {
        let others = [b"/p/0".to_vec(), b"/p/1".to_vec(), b"/p/2".to_vec()];
        let respelled = |options: &[u8]| parse(options).expect("options").respelled(&others);
        let options = b"-I /home/a/lib -DX=1 -I/opt/x -isystem .";
        let other = respelled(options).expect("respelled");
        assert_eq!(other, b"-I /p/0 -DX=1 -I/p/1 -isystem /p/2");
        let keyed = |options: &[u8]| parse(options).expect("options").normalized;
        assert_eq!(keyed(&other), keyed(options));
        assert_eq!(respelled(b"-w").as_deref(), Some(&b"-w"[..]));
        assert_eq!(respelled(b"-g -I /a"), None);
        assert_eq!(respelled(b"-I \"/a\""), None);
    }
}
