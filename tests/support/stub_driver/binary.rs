//! The binary format, a text:
//!
//! ```text
//! STUBBIN1
//! device NAME
//! code TYPE DIGEST NONCE STATEFUL
//! kernel NAME X Y Z ADDRESS/QUALIFIER...      one line per kernel
//! fill DIGITS                                 up to the size that is asked for; without it, no such line
//! end DIGEST                                  of all bytes before this line
//! ```

use std::fmt::Write;
use std::sync::atomic::AtomicU64;

use crate::compiler::{Code, source_digest};
use crate::config;
use crate::parse::{Argument, Kernel};

pub fn write(code: &Code, device: &str) -> Vec<u8> {
    let mut text = format!(
        "STUBBIN1\ndevice {device}\ncode {} {:016x} {:016x} {}\n",
        code.kind, code.digest, code.nonce, code.stateful
    );
    for kernel in &code.kernels {
        let [x, y, z] = kernel.group_size;
        let _ = write!(text, "kernel {} {x} {y} {z}", kernel.name);
        for argument in &kernel.arguments {
            let _ = write!(text, " {}/{}", argument.address, argument.type_qualifier);
        }
        text.push('\n');
    }
    if config::binary_bytes() > text.len() {
        fill(&mut text, code.digest, config::binary_bytes());
    }
    let digest = source_digest(text.as_bytes());
    let _ = writeln!(text, "end {digest:016x}");
    text.into_bytes()
}

/// As instructions would, it differs from program to program and hardly compresses.
fn fill(text: &mut String, digest: u64, size: usize) {
    text.push_str("fill ");
    let mut state = digest | 1;
    while text.len() < size {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let _ = write!(text, "{:08x}", state >> 32);
    }
    text.push('\n');
}

/// The code in a binary; none if it is damaged or made for another device.
pub fn read(bytes: &[u8], device: &str) -> Option<Code> {
    let text = std::str::from_utf8(bytes).ok()?;
    let body = &text[..text.rfind("end ")?];
    if text[body.len()..] != format!("end {:016x}\n", source_digest(body.as_bytes())) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != "STUBBIN1" || lines.next()? != format!("device {device}") {
        return None;
    }
    let mut words = lines.next()?.strip_prefix("code ")?.split(' ');
    Some(Code {
        kind: words.next()?.parse().ok()?,
        digest: u64::from_str_radix(words.next()?, 16).ok()?,
        nonce: u64::from_str_radix(words.next()?, 16).ok()?,
        stateful: words.next()?.parse().ok()?,
        kernels: lines
            .filter(|line| !line.starts_with("fill "))
            .map(kernel)
            .collect::<Option<_>>()?,
        launches: AtomicU64::new(0),
    })
}

fn kernel(line: &str) -> Option<Kernel> {
    let mut words = line.strip_prefix("kernel ")?.split(' ');
    let mut kernel = Kernel {
        name: words.next()?.to_owned(),
        ..Kernel::default()
    };
    for size in &mut kernel.group_size {
        *size = words.next()?.parse().ok()?;
    }
    for word in words {
        let (address, qualifier) = word.split_once('/')?;
        kernel.arguments.push(Argument {
            address: address.parse().ok()?,
            type_qualifier: qualifier.parse().ok()?,
            ..Argument::default()
        });
    }
    Some(kernel)
}
