//! `oclcache extract`: writes one entry as files.
//!
//! They are written to a temporary directory beside the target, which is renamed when it is complete. Names that programs chose become
//! names of files only if they are harmless (`names`).

mod headers;
mod names;
mod rebuild;

use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use opencl_sys::{CL_KERNEL_ARG_NAME, CL_KERNEL_ARG_TYPE_NAME, CL_PROGRAM_BUILD_LOG};

use super::entry_view::{devices, kind, value};
use super::failure::Failure;
use super::find::find_entry;
use super::interrupt::Interrupt;
use super::output::say;
use crate::key::ingredients::{Key, Kind, digest_of};
use crate::log::text;
use crate::store::entry::{Answer, Answers, Entry, KernelFacts, Meta};
use crate::store::recipe::{RecipeBase, StoredRecipe};

/// Write one entry as files, with a script that compiles it again
#[derive(Args)]
#[command(
    after_help = "Example: oclcache extract 4f1d2a blur && blur/rebuild.sh\nIn ccache: --inspect"
)]
pub struct ExtractArgs {
    /// The key, or enough of its first digits
    key: String,
    /// A new or empty directory
    directory: PathBuf,
}

impl ExtractArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (key, _, entry) = find_entry(&self.key)?;
        let target = std::path::absolute(&self.directory).map_err(Failure::new)?;
        let shown = crate::log::path(&self.directory).to_string();
        check_target(&target, &shown)?;
        let cannot =
            |error: io::Error| Failure::new(format_args!("cannot write `{shown}`: {error}"));
        let interrupt = Interrupt::listen()?;
        let parent = target.parent().unwrap_or(Path::new("/"));
        let made = tempfile::Builder::new()
            .prefix(".oclcache-extract-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent);
        let made = made.map_err(cannot)?;
        let lacking = write(made.path(), &key, &entry).map_err(cannot)?;
        interrupt.go_on()?;
        // Fails if the target exists and is not an empty directory.
        fs::rename(made.path(), &target).map_err(cannot)?;
        let _ = made.keep();
        for words in &lacking {
            say(&format!("oclcache: {words}"));
        }
        let count = names_in(&target);
        say(&format!(
            "oclcache: wrote {} to `{shown}`: {count}",
            &key.hex()[..16]
        ));
        Ok(ExitCode::SUCCESS)
    }
}

fn check_target(target: &Path, shown: &str) -> Result<(), Failure> {
    let refused = |why: &str| {
        Err(Failure::new(format_args!(
            "`{shown}` {why}; name a directory that is new or empty"
        )))
    };
    match fs::symlink_metadata(target) {
        Err(_) => Ok(()),
        Ok(metadata) if metadata.is_symlink() => refused("is a link"),
        Ok(metadata) if !metadata.is_dir() => refused("is not a directory"),
        Ok(_) => match fs::read_dir(target) {
            Ok(mut names) => match names.next() {
                None => Ok(()),
                Some(_) => refused("is not empty"),
            },
            Err(error) => refused(&format!("cannot be read ({error})")),
        },
    }
}

/// The names at the top of the tree.
fn names_in(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(", ")
}

/// Writes all files. Returns messages about what is missing.
fn write(top: &Path, key: &Key, entry: &Entry) -> io::Result<Vec<String>> {
    let meta = &entry.meta;
    let mut lacking = Vec::new();
    let recipe = entry.recipe().ok();
    let recorded = recipe.as_ref().and_then(|recipe| recipe.options.as_deref());
    let options = recorded.or(meta.options.as_deref()).unwrap_or_default();
    fs::write(top.join("options.txt"), options)?;
    fs::write(
        top.join("environment.txt"),
        environment(key, meta, recipe.as_ref()),
    )?;
    fs::write(top.join("build.log"), build_log(meta, options))?;
    fs::write(top.join("kernels.txt"), kernels(meta))?;
    fs::create_dir(top.join("binaries"))?;
    let names = devices(&meta.ingredients);
    for (index, binary) in entry.binaries().enumerate() {
        let device = meta
            .built
            .get(index)
            .and_then(|device| names.get(*device as usize));
        let name = names::safe(device.map_or("device", String::as_str).as_bytes());
        fs::write(
            top.join("binaries").join(format!("{index}-{name}.bin")),
            binary,
        )?;
    }
    if entry.is_pending() {
        lacking.push(
            "there are no binaries: this is a pending recipe; `oclcache bake` compiles it"
                .to_owned(),
        );
    }
    let Some(recipe) = recipe else {
        lacking.push("there is no source, so it cannot be compiled again: it was stored without (OCLCACHE_STORE_SOURCE=0, or an archive without sources)".to_owned());
        return Ok(lacking);
    };
    let file = match &recipe.base {
        RecipeBase::Source(source) => {
            fs::write(top.join("source.cl"), &**source)?;
            "source.cl"
        }
        RecipeBase::Il(code, _) => {
            fs::write(top.join("program.spv"), &**code)?;
            "program.spv"
        }
        RecipeBase::Linked(keys) => {
            let keys: Vec<String> = keys.iter().map(Key::hex).collect();
            fs::write(top.join("inputs.txt"), keys.join("\n") + "\n")?;
            lacking.push("it has no source, so it cannot be compiled again: it was linked from the programs whose keys are in inputs.txt; extract those".to_owned());
            return Ok(lacking);
        }
    };
    fs::create_dir(top.join("headers"))?;
    let mut written = headers::write(top, &recipe)?;
    lacking.append(&mut written.lacking);
    if recipe.previous.is_some() {
        lacking.push(
            "it was built for other devices before, which rebuild.sh does not repeat".to_owned(),
        );
    }
    if recipe.devices.iter().any(|device| device.is_part) {
        lacking.push(
            "it was built for a sub-device; rebuild.sh uses a device of that name".to_owned(),
        );
    }
    fs::write(
        top.join("rebuild.c"),
        rebuild::program(&recipe, &written, file),
    )?;
    let script = top.join("rebuild.sh");
    fs::write(&script, rebuild::script(meta, &mut lacking))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(lacking)
}

/// Where it was compiled: variables as `NAME=VALUE`, and everything else in comments.
fn environment(key: &Key, meta: &Meta, recipe: Option<&StoredRecipe>) -> String {
    let mut shown = String::new();
    let mut row = |name: &str, words: &str| {
        let _ = writeln!(shown, "# {name:<18}{}", text(words.as_bytes()));
    };
    row("key", &key.hex());
    row("program", &meta.executable);
    row(
        "driver",
        &format!("{} ({})", meta.driver_family, meta.driver_library),
    );
    let directory = recipe.and_then(|recipe| recipe.working_directory.as_deref());
    if let Some(directory) = directory {
        row("working directory", &String::from_utf8_lossy(directory));
    }
    let is_of_place = |kind: Kind| {
        matches!(
            kind,
            Kind::Device | Kind::Driver | Kind::Processor | Kind::Executable
        )
    };
    for one in meta.ingredients.iter().filter(|one| is_of_place(one.kind)) {
        let _ = writeln!(
            shown,
            "# {:<18}{} {}",
            kind(one),
            text(one.name.as_bytes()),
            value(one)
        );
    }
    for one in meta
        .ingredients
        .iter()
        .filter(|one| one.kind == Kind::Environment)
    {
        let name = text(one.name.as_bytes());
        let _ = match digest_of(&one.value) {
            Some(_) => writeln!(
                shown,
                "# {name} was set; only its digest is stored: {}",
                value(one)
            ),
            None => writeln!(shown, "{name}={}", text(&one.value)),
        };
    }
    shown
}

/// The build logs of all devices.
fn build_log(meta: &Meta, options: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for answers in &meta.facts.devices {
        let Some(answer) = find(answers, CL_PROGRAM_BUILD_LOG) else {
            continue;
        };
        let log = match answer {
            Answer::Value(text) => text.to_vec(),
            Answer::AroundOwnOptions(parts) => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                parts.join(options)
            }
            Answer::Withheld => b"(not stored)".to_vec(),
            Answer::Error(_) | Answer::OwnOptions => continue,
        };
        let log = log.strip_suffix(b"\0").unwrap_or(&log);
        all.extend(log);
        if !log.is_empty() && !log.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    all
}

fn find(answers: &Answers, name: u32) -> Option<&Answer> {
    answers
        .iter()
        .find(|(query, _)| *query == name)
        .map(|(_, answer)| answer)
}

/// One line for each kernel, with its arguments if they are known.
fn kernels(meta: &Meta) -> String {
    let mut shown = String::new();
    for name in &meta.facts.kernel_names {
        let arguments = meta.facts.kernel(name).map(arguments).unwrap_or_default();
        let _ = writeln!(shown, "{}{arguments}", text(name));
    }
    shown
}

fn arguments(kernel: &KernelFacts) -> String {
    let word = |answers: &Answers, name| match find(answers, name) {
        Some(Answer::Value(value)) => text(value.strip_suffix(b"\0").unwrap_or(value)).to_string(),
        _ => "?".to_owned(),
    };
    let arguments = kernel.arguments.iter().map(|argument| {
        format!(
            "{} {}",
            word(argument, CL_KERNEL_ARG_TYPE_NAME),
            word(argument, CL_KERNEL_ARG_NAME)
        )
    });
    format!("({})", arguments.collect::<Vec<_>>().join(", "))
}
