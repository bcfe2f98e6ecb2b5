//! Whether a program can load the library, by its file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, PT_INTERP, ProgramType};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::regular_file;

pub fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let runnable = |file: &PathBuf| {
        std::fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(runnable)
}

/// Whether a program runs with privileges that its caller does not have.
pub fn is_raised(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.mode() & 0o6000 != 0)
        || rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok()
}

/// Whether a file is a statically linked program.
pub fn is_static(file: &Path) -> bool {
    let Ok(Some(bytes)) = regular_file::read(file) else {
        return false;
    };
    let headers = FileHeader64::<object::Endianness>::parse(&*bytes).and_then(|header| {
        let endian = header.endian()?;
        let headers = header.program_headers(endian, &*bytes)?;
        Ok(headers
            .iter()
            .any(|header| ProgramType(header.p_type(endian).0) == PT_INTERP))
    });
    headers == Ok(false)
}
