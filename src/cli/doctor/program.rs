//! Checks whether a program can load the library.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::elf::{EM_386, EM_AARCH64, EM_ARM, EM_RISCV, EM_X86_64};
use object::read::elf::FileHeader;

use super::report::{DoctorReport, Fix};
use crate::cli::executable::{find_program, is_raised, is_static};
use crate::log::path;

const ABOUT: &str = "program";

pub fn examine(program: &OsStr, report: &mut DoctorReport) {
    let Some(file) = find_program(program).filter(|file| file.is_file()) else {
        let shown = crate::log::os(program);
        let (what, words) = match Path::new(program).is_dir() {
            true => ("is a directory", "name a program in it"),
            false => (
                "is not found",
                "give its path, or the name of a program in PATH",
            ),
        };
        return report.wrong(ABOUT, format!("{shown} {what}"), Fix::words(words));
    };
    let shown = path(&file).to_string();
    if is_raised(&file) {
        let text = format!(
            "{shown} runs with raised privileges (setuid, setgid or file capabilities), so its environment and its caller's cache are not used"
        );
        let has_bits = std::fs::metadata(&file).is_ok_and(|file| file.mode() & 0o6000 != 0);
        let command = if has_bits { "chmod ug-s" } else { "setcap -r" };
        let fix = Fix::on(command, &file).by_owner(is_own(&file)).because(
            "such a program gets no cache; if it does not need the privileges, remove them",
        );
        return report.wrong(ABOUT, text, fix);
    }
    if is_static(&file) {
        let text =
            format!("{shown} is statically linked, so it can load neither drivers nor the cache");
        let fix = Fix::words(
            "link it with libOpenCL.so (`-lOpenCL`, without `-static`), or use a build that is",
        );
        return report.wrong(ABOUT, text, fix);
    }
    let bytes = std::fs::read(&file).unwrap_or_default();
    let is_runnable = std::fs::metadata(&file).is_ok_and(|file| file.mode() & 0o111 != 0);
    match machine(&bytes) {
        None if bytes.starts_with(b"#!") => {
            let interpreter = bytes[2..].split(|byte| *byte == b'\n').next();
            let interpreter = crate::log::text(interpreter.unwrap_or_default()).to_string();
            let interpreter = interpreter.trim();
            let command = interpreter.split_whitespace().next().unwrap_or_default();
            if !Path::new(command).exists() {
                let text = format!("{shown} is a script of `{interpreter}`, which does not exist");
                let fix = Fix::words("correct its first line, or install that program");
                return report.wrong(ABOUT, text, fix);
            }
            report.good(
                ABOUT,
                format!("{shown} is a script of `{interpreter}`, which loads OpenCL"),
            );
        }
        None => {
            let fix = Fix::words("name the program that uses OpenCL");
            report.doubtful(ABOUT, format!("{shown} is not an ELF program"), fix);
        }
        Some(false) => {
            let fix = Fix::words(
                "use a build of the program for this machine, or build oclcache for the program's",
            );
            report.wrong(
                ABOUT,
                format!("{shown} is built for another kind of machine than oclcache"),
                fix,
            );
        }
        Some(true) if !is_runnable => report.wrong(
            ABOUT,
            format!("{shown} is not executable"),
            Fix::on("chmod +x", &file).by_owner(is_own(&file)),
        ),
        Some(true) => report.good(
            ABOUT,
            format!("{shown} is dynamically linked and has no raised privileges"),
        ),
    }
}

/// Whether this user may change the mode of a file.
fn is_own(file: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(file).is_ok_and(|file| [0, file.uid()].contains(&own))
}

/// Whether a program is for the machine that we are built for; None if it is not an ELF file.
pub fn machine(bytes: &[u8]) -> Option<bool> {
    use object::elf::{FileHeader32, FileHeader64};
    let own = match std::env::consts::ARCH {
        "x86_64" => EM_X86_64,
        "aarch64" => EM_AARCH64,
        "riscv64" => EM_RISCV,
        "x86" => EM_386,
        "arm" => EM_ARM,
        _ => return bytes.starts_with(b"\x7fELF").then_some(true),
    };
    let is_64 = cfg!(target_pointer_width = "64");
    if let Ok(header) = FileHeader64::<object::Endianness>::parse(bytes) {
        let endian = header.endian().ok()?;
        return Some(is_64 && header.e_machine(endian) == own);
    }
    let header = FileHeader32::<object::Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    Some(!is_64 && header.e_machine(endian) == own)
}
