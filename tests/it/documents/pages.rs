//! The pages: README.md, CONTRIBUTING.md, docs/*.md and docs/internals/*.md, taken apart into what tests ask of them.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the pages stand.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One page.
pub struct Page {
    /// Its path below [`top`].
    pub name: String,
    pub text: String,
}

/// A fenced block: ```` ```LANGUAGE WORD... ````.
#[derive(Debug)]
pub struct Block {
    pub language: String,
    /// What stands behind the language: `exit=CODE`, `run-by=FILE`.
    pub words: Vec<String>,
    pub text: String,
    /// The line of the page on which it begins.
    pub line: usize,
    /// The block of text that follows with nothing between: what the commands of this one print.
    pub shows: Option<String>,
}

impl Block {
    /// What a word of the form `NAME=VALUE` says.
    pub fn word(&self, name: &str) -> Option<&str> {
        let value = |word: &'_ String| word.strip_prefix(name)?.strip_prefix('=').map(str::len);
        let found = self.words.iter().find(|word| value(word).is_some())?;
        Some(&found[name.len() + 1..])
    }
}

/// All pages.
pub fn all() -> Vec<Page> {
    let docs = ["docs", "docs/internals"].into_iter().flat_map(|folder| {
        let files = fs::read_dir(top().join(folder)).expect("a folder of pages");
        files.map(move |file| PathBuf::from(folder).join(file.expect("listed").file_name()))
    });
    let mut names: Vec<PathBuf> = docs
        .chain(["README.md", "CONTRIBUTING.md"].map(PathBuf::from))
        .filter(|name| name.extension().is_some_and(|end| end == "md"))
        .collect();
    names.sort();
    let pages = names.into_iter().map(|name| Page {
        text: fs::read_to_string(top().join(&name)).expect("a page"),
        name: name.display().to_string(),
    });
    pages.collect()
}

impl Page {
    /// The blocks, and the page's lines without them, each with its number.
    fn parts(&self) -> (Vec<Block>, Vec<(usize, &str)>) {
        let (mut blocks, mut prose): (Vec<Block>, Vec<_>) = Default::default();
        let mut open: Option<Block> = None;
        let mut is_behind_block = false;
        for (number, line) in self.text.lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(info), None) => {
                    let mut words = info.split_whitespace().map(str::to_owned);
                    open = Some(Block {
                        language: words.next().unwrap_or_default(),
                        words: words.collect(),
                        text: String::new(),
                        line: number + 1,
                        shows: None,
                    });
                }
                (Some(_), Some(_)) => {
                    let closed = open.take().expect("open");
                    match blocks.last_mut() {
                        Some(last) if is_behind_block && closed.language == "text" => {
                            last.shows = Some(closed.text);
                        }
                        _ => blocks.push(closed),
                    }
                    is_behind_block = true;
                }
                (None, Some(block)) => {
                    block.text += line;
                    block.text.push('\n');
                }
                (None, None) => {
                    is_behind_block &= line.trim().is_empty();
                    prose.push((number + 1, line));
                }
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.name);
        (blocks, prose)
    }

    pub fn blocks(&self) -> Vec<Block> {
        self.parts().0
    }

    pub fn prose(&self) -> Vec<(usize, &str)> {
        self.parts().1
    }

    /// What stands in `backticks`, with its line.
    pub fn spans(&self) -> Vec<(usize, &str)> {
        let prose = self.prose().into_iter();
        let spans = prose.flat_map(|(number, line)| {
            let odd = line.split('`').skip(1).step_by(2);
            odd.map(move |span| (number, span))
        });
        spans.collect()
    }

    /// The targets of links and pictures, with their lines.
    pub fn links(&self) -> Vec<(usize, &str)> {
        let prose = self.prose().into_iter();
        let links = prose.flat_map(|(number, line)| {
            let targets = line.split("](").skip(1);
            let targets = targets.filter_map(|rest| rest.split_once(')'));
            let pictures = line
                .split(" src")
                .skip(1)
                .chain(line.split(" srcset").skip(1));
            let pictures = pictures.filter_map(|rest| rest.strip_prefix("=\"")?.split_once('"'));
            let all = targets.chain(pictures);
            all.map(move |(target, _)| (number, target))
        });
        links.collect()
    }

    /// The names by which links find the headings, as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let prose = self.prose().into_iter();
        let headings =
            prose.filter_map(|(_, line)| Some(line.strip_prefix('#')?.trim_matches('#').trim()));
        let anchor = |heading: &str| {
            let kept = heading.chars().filter_map(|character| match character {
                ' ' => Some('-'),
                '-' | '_' => Some(character),
                _ if character.is_alphanumeric() => Some(character.to_ascii_lowercase()),
                _ => None,
            });
            kept.collect()
        };
        headings.map(anchor).collect()
    }

    /// What a person could copy and run, with its line: blocks of commands and spans.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let (blocks, _) = self.parts();
        let spans = self.spans().into_iter();
        let spans = spans.map(|(line, span)| (line, span.to_owned()));
        let in_blocks = blocks
            .into_iter()
            .filter(|block| !["text", "toml", "json"].contains(&&*block.language))
            .flat_map(|block| {
                let lines = block.text.replace("\\\n", " ");
                let line = block.line;
                let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
                lines.into_iter().map(move |text| (line, text))
            });
        spans.chain(in_blocks).collect()
    }
}
