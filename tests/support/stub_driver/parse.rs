//! Finds the kernels of a preprocessed source.

use opencl_sys::*;

/// One kernel of a program.
#[derive(Clone, Default, PartialEq)]
pub struct Kernel {
    pub name: String,
    /// The texts inside `__attribute__((...))`, and whether they and the arguments' names are known at all.
    pub attributes: String,
    pub from_source: bool,
    pub group_size: [usize; 3],
    pub arguments: Vec<Argument>,
}

/// One argument; a binary keeps its address space only.
#[derive(Clone, Default, PartialEq)]
pub struct Argument {
    pub address: cl_kernel_arg_address_qualifier,
    pub access: cl_kernel_arg_access_qualifier,
    pub type_qualifier: u64,
    pub type_name: String,
    pub name: String,
}

impl Argument {
    pub fn is_writable_buffer(&self) -> bool {
        self.address == CL_KERNEL_ARG_ADDRESS_GLOBAL && self.type_qualifier & CL_CONST == 0
    }
}

/// CL_KERNEL_ARG_TYPE_CONST as wide as cl_kernel_arg_type_qualifier is in C.
pub const CL_CONST: u64 = 1;

/// All kernels, in the order of the source.
pub fn kernels(text: &str) -> Vec<Kernel> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((word, after)) = next_word(rest) {
        rest = after;
        if word == "kernel" || word == "__kernel" {
            found.extend(kernel(after));
        }
    }
    found
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The next identifier, and what follows it.
fn next_word(text: &str) -> Option<(&str, &str)> {
    let start = text.find(is_word)?;
    let text = &text[start..];
    Some(text.split_at(text.find(|c| !is_word(c)).unwrap_or(text.len())))
}

/// The text inside the brackets that follow, and what comes after them.
fn brackets(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start().strip_prefix('(')?;
    let mut depth = 1;
    for (index, character) in text.char_indices() {
        depth += match character {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some((&text[..index], &text[index + 1..]));
        }
    }
    None
}

/// The kernel that follows the keyword: attributes, `void`, a name, arguments.
fn kernel(mut rest: &str) -> Option<Kernel> {
    let mut kernel = Kernel {
        from_source: true,
        ..Kernel::default()
    };
    let mut attributes = Vec::new();
    while let Some((word, after)) = next_word(rest) {
        rest = after;
        match word {
            "__attribute__" => {
                let (outer, after) = brackets(rest)?;
                let (inner, _) = brackets(outer)?;
                attributes.push(inner.trim().to_owned());
                rest = after;
            }
            "void" => {}
            name => {
                kernel.name = name.to_owned();
                kernel.arguments = arguments(brackets(rest)?.0);
                for attribute in &attributes {
                    if let Some(sizes) = attribute.strip_prefix("reqd_work_group_size") {
                        for (index, size) in brackets(sizes)?.0.split(',').take(3).enumerate() {
                            kernel.group_size[index] = size.trim().parse().unwrap_or(0);
                        }
                    }
                }
                kernel.attributes = attributes.join(" ");
                return Some(kernel);
            }
        }
    }
    None
}

fn arguments(text: &str) -> Vec<Argument> {
    let text = text.trim();
    if text.is_empty() || text == "void" {
        return Vec::new();
    }
    text.split(',').map(argument).collect()
}

fn argument(text: &str) -> Argument {
    let mut argument = Argument {
        address: CL_KERNEL_ARG_ADDRESS_PRIVATE,
        access: CL_KERNEL_ARG_ACCESS_NONE,
        ..Argument::default()
    };
    let mut words = Vec::new();
    let mut rest = text;
    while let Some((word, after)) = next_word(rest) {
        rest = after;
        match word.trim_start_matches('_') {
            "global" => argument.address = CL_KERNEL_ARG_ADDRESS_GLOBAL,
            "local" => argument.address = CL_KERNEL_ARG_ADDRESS_LOCAL,
            "constant" => argument.address = CL_KERNEL_ARG_ADDRESS_CONSTANT,
            "private" => {}
            "read_only" => argument.access = CL_KERNEL_ARG_ACCESS_READ_ONLY,
            "write_only" => argument.access = CL_KERNEL_ARG_ACCESS_WRITE_ONLY,
            "read_write" => argument.access = CL_KERNEL_ARG_ACCESS_READ_WRITE,
            "const" => argument.type_qualifier |= CL_CONST,
            "restrict" => argument.type_qualifier |= 2,
            "volatile" => argument.type_qualifier |= 4,
            _ => words.push(word),
        }
    }
    argument.name = words.pop().unwrap_or("").to_owned();
    let stars = text.matches('*').count();
    argument.type_name = words.join(" ").replace("unsigned ", "u") + &"*".repeat(stars);
    if argument.type_name.starts_with("image") {
        argument.address = CL_KERNEL_ARG_ADDRESS_GLOBAL;
        argument.type_qualifier = 0;
    }
    argument
}
