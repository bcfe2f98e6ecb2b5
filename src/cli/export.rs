//! `oclcache export`: writes entries into an archive.
//!
//! Entries are read once, into a file without a name, so that the manifest matches them, whatever other processes store meanwhile.
//! The archive gets its name when it is complete.

mod disclosure;
mod selection;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Seek, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tar::{Builder, EntryType, Header};
use tempfile::NamedTempFile;
use zstd::stream::write::Encoder;

use super::archive::manifest::{FORMAT, ListedMember, MANIFEST, Manifest, SEAL, member};
use super::archive::read::MAGIC;
use super::archive::seal::Seal;
use super::confirm::confirm;
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::open::{entries_of_system, store};
use super::output::{plain, plural, print_json, say, size};
use super::progress::bar;
use crate::config::Config;
use crate::key::ingredients::Key;
use crate::store::Store;
use selection::{ExportFilter, ExportSelection, cannot, place};

/// The default of zstd. A higher level takes ten times as long and saves a tenth of the size.
const LEVEL: i32 = 3;

/// Write entries into an archive for another machine, user or container
#[derive(Args)]
#[command(after_help = "Example: oclcache export --driver pocl --since 7d kernels.tar.zst")]
pub struct ExportArgs {
    #[command(flatten)]
    filter: ExportFilter,
    /// Show what the archive would disclose, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Replace an archive that exists, without asking
    #[arg(long)]
    yes: bool,
    /// The archive, such as kernels.tar.zst, or `-` for standard output
    file: PathBuf,
}

impl ExportArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let is_stream = self.file == OsStr::new("-");
        if is_stream && self.json && !self.dry_run {
            let words = "standard output cannot be both the archive and JSON; name a file";
            return Err(Failure::usage(words));
        }
        if is_stream && !self.dry_run && io::stdout().is_terminal() {
            let words = "an archive cannot be written to a terminal; name a file";
            return Err(Failure::usage(words));
        }
        if !is_stream {
            check_target(&self.file, self.yes || self.dry_run)?;
        }
        let Some(store) = store()? else {
            let of_system = entries_of_system(&Config::read());
            return Err(Failure::new(format_args!(
                "there is nothing to export: the cache is empty{of_system}"
            )));
        };
        let interrupt = Interrupt::listen()?;
        let chosen = {
            let spool = (!self.dry_run).then(|| place(&self.file));
            ExportSelection::read(&store, &self.filter, spool.as_deref(), &interrupt)?
        };
        if !chosen.listed.is_empty() {
            say(&format!("oclcache: {}", chosen.disclosure.words()));
        }
        for (what, count) in &chosen.left_out {
            say(&format!("oclcache: left out: {count} ({what})"));
        }
        if chosen.damaged > 0 {
            say(&format!(
                "oclcache: left out: {}",
                plural(chosen.damaged, "damaged entry", "damaged entries")
            ));
        }
        if chosen.listed.is_empty() {
            self.filter.say_unknown_names(&store)?;
            let is_left_out = !chosen.left_out.is_empty() || chosen.damaged > 0;
            return Err(Failure::new(match is_left_out {
                true => "there is nothing to export: every entry that matches was left out",
                false => {
                    "there is nothing to export: no entries match; run `oclcache list` to see what there is"
                }
            }));
        }
        let written = match self.dry_run {
            true => None,
            false if is_stream => Some(to_standard_output(
                &store,
                chosen.spool.as_ref(),
                &chosen.listed,
                &interrupt,
            )?),
            false => Some(to_file(&store, &self, &chosen, &interrupt)?),
        };
        let shown = crate::log::path(&self.file).to_string();
        if let Some(bytes) = written {
            let count = plural(chosen.listed.len() as u64, "entry", "entries");
            say(&format!(
                "oclcache: {count} exported to `{shown}`, {}",
                size(bytes)
            ));
        }
        if self.json {
            return print_json(&json!({
                "file": self.file.to_string_lossy(),
                "written": written.is_some(),
                "bytes": written,
                "keys": chosen.listed.iter().map(|(key, _)| key.hex()).collect::<Vec<_>>(),
                "discloses": chosen.disclosure.json(),
                "left_out": chosen.left_out.iter().map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
                "damaged": chosen.damaged,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Fails if the target exists, unless it is an archive that may be replaced.
fn check_target(file: &Path, may_replace: bool) -> Result<(), Failure> {
    let shown = crate::log::path(file).to_string();
    let Ok(metadata) = std::fs::metadata(file) else {
        return Ok(());
    };
    if metadata.is_dir() {
        return Err(Failure::new(format_args!(
            "`{shown}` is a directory; name a file in it, such as `{shown}/kernels.tar.zst`"
        )));
    }
    let kind = metadata.file_type();
    if kind.is_fifo() || kind.is_char_device() || kind.is_block_device() || kind.is_socket() {
        return Err(Failure::new(format_args!(
            "`{shown}` is not a regular file; write to standard output: oclcache export - > {shown}"
        )));
    }
    let mut start = Vec::new();
    let read =
        File::open(file).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    match read {
        Ok(_) if start.is_empty() || start == MAGIC && may_replace => Ok(()),
        Ok(_) if start == MAGIC => match confirm(&format!("`{shown}` exists. Replace it?")) {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::new(format_args!("`{shown}` is not replaced"))),
            None => Err(Failure::new(format_args!(
                "`{shown}` exists; use `--yes` to replace it, or name another file"
            ))),
        },
        Ok(_) => Err(Failure::new(format_args!(
            "`{shown}` exists and is not an archive, so it is not replaced; name another file"
        ))),
        Err(error) => Err(Failure::new(format_args!(
            "cannot read `{shown}`: {error}; name another file"
        ))),
    }
}

/// Writes a temporary file and renames it when it is complete. Returns its size.
fn to_file(
    store: &Store,
    arguments: &ExportArgs,
    chosen: &ExportSelection,
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let failed = |error: io::Error| cannot("write", &arguments.file, &error);
    let made = tempfile::Builder::new()
        .prefix(".oclcache-export-")
        .tempfile_in(place(&arguments.file));
    let temporary: NamedTempFile = made.map_err(failed)?;
    let output = BufWriter::new(temporary.as_file());
    write(
        store,
        chosen.spool.as_ref(),
        &chosen.listed,
        output,
        interrupt,
        &failed,
    )?;
    // A power cut must not leave an empty archive.
    temporary.as_file().sync_all().map_err(failed)?;
    let bytes = temporary.as_file().metadata().map_err(failed)?.len();
    interrupt.go_on()?;
    temporary
        .persist(&arguments.file)
        .map_err(|error| failed(error.error))?;
    Ok(bytes)
}

fn to_standard_output(
    store: &Store,
    spool: Option<&File>,
    listed: &[(Key, ListedMember)],
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    struct Count<W>(W, u64);
    impl<W: Write> Write for Count<W> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            let length = self.0.write(buffer)?;
            self.1 += length as u64;
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    let failed =
        |error: io::Error| Failure::new(format_args!("cannot write to standard output: {error}"));
    let mut output = Count(BufWriter::new(io::stdout().lock()), 0);
    write(store, spool, listed, &mut output, interrupt, &failed)?;
    Ok(output.1)
}

fn write(
    store: &Store,
    spool: Option<&File>,
    listed: &[(Key, ListedMember)],
    output: impl Write,
    interrupt: &Interrupt,
    failed: &dyn Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let manifest = Manifest {
        format: FORMAT,
        oclcache: env!("CARGO_PKG_VERSION").to_owned(),
        created: listed
            .iter()
            .map(|(_, listed)| listed.created)
            .max()
            .unwrap_or(0),
        entries: listed.iter().map(|(_, listed)| listed.clone()).collect(),
    };
    let created = manifest.created;
    let manifest = serde_json::to_value(&manifest).map_err(Failure::new)?;
    let manifest = plain(&manifest);
    let mut encoder = Encoder::new(output, LEVEL).map_err(failed)?;
    encoder.include_checksum(true).map_err(failed)?;
    let mut archive = Builder::new(encoder);
    append(
        &mut archive,
        MANIFEST,
        created,
        manifest.len() as u64,
        manifest.as_bytes(),
    )
    .map_err(failed)?;
    // A read-only cache gets no key. Without a key, importing needs `--trust`.
    let config = Config::read();
    let seal = match config.readonly() {
        true => Seal::of(store),
        false => Seal::make(store).unwrap_or_else(|error| {
            say(&format!("oclcache: the archive is not sealed: {error}"));
            None
        }),
    };
    if let Some(seal) = seal {
        let signature = seal.sign(manifest.as_bytes()) + "\n";
        append(
            &mut archive,
            SEAL,
            created,
            signature.len() as u64,
            signature.as_bytes(),
        )
        .map_err(failed)?;
    }
    let mut spool = spool.ok_or_else(|| Failure::new("nothing was read"))?;
    spool.rewind().map_err(failed)?;
    let bar = bar(listed.len() as u64, "writing");
    for (key, listed) in listed {
        interrupt.go_on()?;
        bar.inc(1);
        append(
            &mut archive,
            &member(key),
            listed.created,
            listed.size,
            spool.take(listed.size),
        )
        .map_err(failed)?;
    }
    bar.finish_and_clear();
    let encoder = archive.into_inner().map_err(failed)?;
    encoder
        .finish()
        .and_then(|mut output| output.flush())
        .map_err(failed)
}

fn append<W: Write>(
    archive: &mut Builder<W>,
    name: &str,
    seconds: u64,
    length: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(length);
    header.set_mode(0o644);
    header.set_mtime(seconds);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, name, content)
}
