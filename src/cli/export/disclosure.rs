//! What an archive discloses, by the content of its entries.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memchr::memmem;
use serde_json::{Value, json};

use super::super::output::{plural, size};
use crate::key::ingredients::Kind;
use crate::log::text;
use crate::store::entry::{Answer, Entry, Meta};
use crate::store::recipe::{HeaderContent, StoredRecipe};
use opencl_sys::CL_PROGRAM_BUILD_LOG;

/// How many examples of each kind are shown.
const EXAMPLES: usize = 3;

/// Values of one kind, with their counts.
type Found = BTreeMap<Vec<u8>, u64>;

#[derive(Default)]
pub struct Disclosure {
    entries: u64,
    sources: (u64, u64),
    headers: (u64, u64),
    logs: u64,
    binaries: (u64, u64),
    options: Found,
    paths: Found,
    variables: Found,
    users: Found,
    programs: Found,
    kernels: Found,
}

impl Disclosure {
    /// Counts what one entry discloses.
    pub fn add(&mut self, entry: &Entry, meta: &Meta, recipe: Option<&StoredRecipe>) {
        self.entries += 1;
        for binary in entry.binaries() {
            self.binaries.0 += 1;
            self.binaries.1 += binary.len() as u64;
        }
        let add = |found: &mut Found, what: &[u8]| {
            if !what.is_empty() {
                *found.entry(what.to_vec()).or_default() += 1;
            }
        };
        add(&mut self.programs, meta.executable.as_bytes());
        for name in &meta.facts.kernel_names {
            add(&mut self.kernels, name);
        }
        add(
            &mut self.options,
            meta.options.as_deref().unwrap_or_default(),
        );
        let mut paths: Vec<&[u8]> = meta
            .include_dirs
            .iter()
            .flatten()
            .map(Vec::as_slice)
            .collect();
        paths.push(meta.driver_library.as_bytes());
        for one in &meta.ingredients {
            match one.kind {
                Kind::Environment => {
                    let variable = [one.name.as_bytes(), b"=", &one.value].concat();
                    add(&mut self.variables, &variable);
                    paths.push(&one.value);
                }
                Kind::WorkingDirectory => paths.push(&one.value),
                Kind::Include if one.name.starts_with('/') => paths.push(one.name.as_bytes()),
                _ => {}
            }
        }
        let is_log = |name: &u32, answer: &Answer| {
            *name == CL_PROGRAM_BUILD_LOG
                && match answer {
                    Answer::Value(text) => text.len() > 1,
                    Answer::AroundOwnOptions(_) => true,
                    _ => false,
                }
        };
        let mut answers = meta.facts.devices.iter().flatten();
        self.logs += u64::from(answers.any(|(name, answer)| is_log(name, answer)));
        if let Some(recipe) = recipe {
            if let Some(text) = recipe.text() {
                self.sources.0 += 1;
                self.sources.1 += text.len() as u64;
            }
            let embedded = recipe.operation.headers();
            let contents = recipe.files.iter().filter_map(|file| match &file.content {
                HeaderContent::Text(text) => Some(text),
                HeaderContent::SameAs { .. } => None,
            });
            for header in embedded.iter().map(|header| &header.source).chain(contents) {
                self.headers.0 += 1;
                self.headers.1 += header.len() as u64;
            }
            paths.extend(recipe.files.iter().map(|file| &*file.path));
            let own = [&recipe.working_directory, &recipe.own_cache];
            paths.extend(own.into_iter().flatten().map(|path| &**path));
            add(
                &mut self.options,
                recipe.options.as_deref().map_or(&[][..], |options| options),
            );
        }
        // PoCL's binaries contain the path of its cache, with or without the recipe.
        let theirs = entry.recipe().ok().and_then(|recipe| recipe.own_cache);
        if let Some(own) = theirs.as_deref() {
            let is_named = |binary: &[u8]| memmem::find(binary, own).is_some();
            if entry.binaries().any(is_named) {
                paths.push(own);
            }
        }
        for path in paths.into_iter().filter(|path| path.starts_with(b"/")) {
            add(&mut self.paths, path);
            add(&mut self.users, user(path));
        }
    }

    /// The disclosure as a message.
    pub fn words(&self) -> String {
        let mut shown = format!(
            "everyone who gets the archive can read this from {}:\n",
            plural(self.entries, "entry", "entries")
        );
        let mut row = |name: &str, words: String| {
            shown += &format!("  {name:<19}{words}\n");
        };
        let texts = |(count, bytes): (u64, u64)| match count {
            0 => "none".to_owned(),
            _ => format!("{count}, {}", size(bytes)),
        };
        row("sources", texts(self.sources));
        row("headers", texts(self.headers));
        row(
            "build logs",
            match self.logs {
                0 => "none".to_owned(),
                logs => logs.to_string(),
            },
        );
        let names = match self.binaries.0 {
            0 => "",
            _ => "; they may contain names of the source",
        };
        row("binaries", texts(self.binaries) + names);
        row("build options", examples(&self.options));
        row("paths", examples(&self.paths));
        row("user names", examples(&self.users));
        row("variables", examples(&self.variables));
        row("program names", examples(&self.programs));
        row("kernel names", examples(&self.kernels));
        shown.pop();
        shown
    }

    pub fn json(&self) -> Value {
        let texts = |(count, bytes): (u64, u64)| json!({ "count": count, "bytes": bytes });
        let found = |found: &Found| -> Vec<String> {
            let names = found
                .keys()
                .map(|name| String::from_utf8_lossy(name).into_owned());
            names.collect()
        };
        json!({
            "sources": texts(self.sources),
            "headers": texts(self.headers),
            "build_logs": self.logs,
            "binaries": texts(self.binaries),
            "options": found(&self.options),
            "paths": found(&self.paths),
            "users": found(&self.users),
            "variables": found(&self.variables),
            "programs": found(&self.programs),
            "kernels": found(&self.kernels),
        })
    }
}

/// The first values, and the number of the others.
fn examples(found: &Found) -> String {
    if found.is_empty() {
        return "none".to_owned();
    }
    let shown = found
        .keys()
        .take(EXAMPLES)
        .map(|name| text(name).to_string());
    let shown: Vec<String> = shown.collect();
    let more = found.len().saturating_sub(EXAMPLES);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}

/// The user whose home a path is in.
fn user(path: &[u8]) -> &[u8] {
    let mut parts = Path::new(OsStr::from_bytes(path)).iter().skip(1);
    match (parts.next().map(OsStr::as_bytes), parts.next()) {
        (Some(b"root"), _) => b"root",
        (Some(b"home" | b"Users"), Some(name)) => name.as_bytes(),
        _ => b"",
    }
}
