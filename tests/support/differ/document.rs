//! What a case is: a document that `ci/differ` writes and that is kept when a case fails.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What this program is given: how its process begins, and what it calls.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The floating-point state of the thread that opens the loader.
    #[serde(default)]
    pub state: Option<State>,
    /// Files below the working directory, by their relative path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    pub calls: Vec<Call>,
    /// What the process that starts this one has done already: variables, limits, preloaded libraries.
    #[serde(default, rename = "process")]
    pub _process: serde_json::Value,
}

/// The control bits of the floating-point unit of a thread, as far as all processors have them.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// 0 to nearest, 1 down, 2 up, 3 to zero.
    pub rounding: u32,
    /// Results that are denormal become zero.
    #[serde(default)]
    pub flush: bool,
    /// Operands that are denormal count as zero; x86 has this apart from `flush`.
    #[serde(default)]
    pub zero: bool,
    /// The precision bits of the x87 control word: 0 single, 2 double, 3 extended. Other processors have none.
    #[serde(default)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub precision: Option<u16>,
}

/// How clCreateProgramWithSource is told where its strings end.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lengths {
    /// No array of lengths.
    Absent,
    /// An array of zeros.
    Zero,
    /// The length of each; bytes of another text follow.
    Given,
}

/// A kernel argument.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Argument {
    /// A buffer of so many words of 64 bits, which count from 0 on; the first one of a kernel is printed.
    Words(usize),
    Int(i32),
    Float(f32),
    Local(usize),
}

/// Which of the functions that answer queries.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Query {
    Program,
    Build,
    Kernel,
    Argument,
    Group,
}

/// One step. Objects have names; what is done with an object that is not there, or is released, is left out.
#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Call {
    /// Devices are `device-0`, ... and what `parts` has named.
    Context {
        id: String,
        devices: Vec<String>,
    },
    /// Sub-devices of one compute unit each: ID-0, ...
    Parts {
        id: String,
        device: String,
    },
    Source {
        id: String,
        context: String,
        strings: Vec<String>,
        lengths: Lengths,
    },
    Build {
        program: String,
        #[serde(default)]
        devices: Vec<String>,
        options: Option<String>,
        #[serde(default)]
        notify: bool,
    },
    Compile {
        program: String,
        #[serde(default)]
        devices: Vec<String>,
        options: Option<String>,
        #[serde(default)]
        headers: Vec<(String, String)>,
        #[serde(default)]
        notify: bool,
    },
    Link {
        id: String,
        context: String,
        #[serde(default)]
        devices: Vec<String>,
        options: Option<String>,
        inputs: Vec<String>,
        #[serde(default)]
        notify: bool,
    },
    /// A program of another one's binaries.
    Binary {
        id: String,
        context: String,
        program: String,
    },
    Kernel {
        id: String,
        program: String,
        name: String,
    },
    /// All kernels: ID-0, ...; with `room` into an array of that size, whatever the number of kernels is.
    Kernels {
        id: String,
        program: String,
        #[serde(default)]
        room: Option<u32>,
    },
    Clone {
        id: String,
        kernel: String,
    },
    Run {
        kernel: String,
        arguments: Vec<Argument>,
    },
    Retain {
        object: String,
    },
    Release {
        object: String,
    },
    /// All queries of a program, kernel or context.
    Facts {
        object: String,
    },
    /// One query, as odd as it may be.
    Ask {
        object: String,
        query: Query,
        #[serde(default)]
        device: Option<String>,
        #[serde(default)]
        index: u32,
        param: u32,
        /// The size that is passed; None: what the query says that it needs, and this much more or less.
        #[serde(default)]
        size: Option<usize>,
        #[serde(default)]
        more: isize,
        #[serde(default)]
        without_value: bool,
        #[serde(default)]
        without_size: bool,
    },
    Unload,
    Variable {
        name: String,
        value: Option<String>,
    },
    /// Writes a file, or removes it.
    File {
        path: String,
        text: Option<String>,
    },
    State {
        state: State,
    },
    /// These on a thread of their own, which is waited for.
    Thread {
        #[serde(default)]
        stack: Option<usize>,
        calls: Vec<Call>,
    },
}
