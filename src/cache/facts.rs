//! Asks the driver for everything that the API shows of a program and of its kernels.

use std::ffi::CString;

use memchr::memmem::FinderRev;
use opencl_sys::*;

use super::restore::split_names;
use crate::cl::info::{Ask, Number, Reply};
use crate::cl::{Device, Kernel, Program};
use crate::driver::profile::KernelFactsTime;
use crate::driver::{BuildArguments, Driver};
use crate::fallible::copy;
use crate::store::entry::{Answer, Answers, Facts, KernelFacts, SIZE_ALONE, UNWRITTEN};
use crate::store::recipe::Text;

/// The queries of clGetProgramInfo that describe the executable rather than the object.
pub const PROGRAM_QUERIES: [cl_program_info; 4] = [
    CL_PROGRAM_NUM_KERNELS,
    CL_PROGRAM_KERNEL_NAMES,
    CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT,
    CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT,
];

/// All queries of clGetProgramBuildInfo.
pub const BUILD_QUERIES: [cl_program_build_info; 5] = [
    CL_PROGRAM_BUILD_STATUS,
    CL_PROGRAM_BUILD_OPTIONS,
    CL_PROGRAM_BUILD_LOG,
    CL_PROGRAM_BINARY_TYPE,
    CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE,
];

/// All queries of clGetKernelArgInfo.
pub const ARGUMENT_QUERIES: [cl_kernel_arg_info; 5] = [
    CL_KERNEL_ARG_ADDRESS_QUALIFIER,
    CL_KERNEL_ARG_ACCESS_QUALIFIER,
    CL_KERNEL_ARG_TYPE_NAME,
    CL_KERNEL_ARG_TYPE_QUALIFIER,
    CL_KERNEL_ARG_NAME,
];

/// Everything that the API shows of a program that the driver has built. Leaves out devices that are not `built`, and kernels on
/// drivers where creating one is expensive.
pub fn facts(
    driver: &Driver,
    program: Program,
    devices: &[Device],
    built: &[usize],
    arguments: &BuildArguments,
) -> Facts {
    let of_device = |(index, device): (usize, &Device)| {
        if built.contains(&index) {
            build_answers(driver, program, *device, arguments)
        } else {
            Answers::new()
        }
    };
    let mut facts = Facts {
        program: program_answers(driver, program),
        devices: devices.iter().enumerate().map(of_device).collect(),
        kernel_names: kernel_names(driver, program),
        ..Facts::default()
    };
    if driver.behavior().kernel_facts == KernelFactsTime::AfterBuild
        && !facts.kernel_names.is_empty()
        && let Ok(kernels) = driver.create_kernels(program)
    {
        let known: Vec<_> = kernels
            .iter()
            .filter_map(|kernel| kernel_facts(driver, *kernel))
            .collect();
        for kernel in kernels {
            driver.release_kernel(kernel);
        }
        facts.creation_order = known.len() == facts.kernel_names.len();
        facts.kernels = known;
    }
    facts
}

fn program_answers(driver: &Driver, program: Program) -> Answers {
    let mut answers = Answers::new();
    let has_none = has_no_kernels(driver, program);
    for name in PROGRAM_QUERIES {
        if has_none && name != CL_PROGRAM_NUM_KERNELS {
            answers.push((name, Answer::Withheld));
            continue;
        }
        let answered = driver.partial_program_info(program, name);
        let unwritten = answered.as_ref().map_or(&[][..], |value| &value.unwritten);
        if !unwritten.is_empty() {
            let unwritten = Answer::Value(unwritten.to_vec().into());
            answers.push((name | UNWRITTEN, unwritten));
        }
        let answer = answer(answered.map(|value| value.bytes));
        let ask = |reply| driver.forward_program_info(program, name, reply);
        answers.extend(size_alone(name, &answer, &ask));
        answers.push((name, answer));
    }
    answers
}

/// What the driver tells of the size of a value that it refuses. Intel's CPU runtime tells the size of the global variables of a compiled
/// object or library, and then has no value (measured).
fn size_alone(name: u32, answer: &Answer, ask: Ask) -> Option<(u32, Answer)> {
    let is_error = matches!(answer, Answer::Error(_));
    let size = is_error
        .then(|| Reply::ask_size_alone(ask).ok())
        .flatten()?;
    let size = (size as u64).to_le_bytes().to_vec();
    Some((name | SIZE_ALONE, Answer::Value(size.into())))
}

/// Whether an executable has no kernels. Then nothing else about kernels is asked: NVIDIA's driver 580 crashed after a build of a source
/// with nothing but a macro, and not where a program asked for the number of kernels alone (measured; that it was the names is inferred).
fn has_no_kernels(driver: &Driver, program: Program) -> bool {
    let count = driver.program_info(program, CL_PROGRAM_NUM_KERNELS);
    count.is_ok_and(|value| <usize as Number>::from_value(&value) == Some(0))
}

/// The names of a program's kernels; none if the driver does not know.
pub(super) fn kernel_names(driver: &Driver, program: Program) -> Vec<Vec<u8>> {
    if has_no_kernels(driver, program) {
        return Vec::new();
    }
    let names = driver.program_info(program, CL_PROGRAM_KERNEL_NAMES);
    split_names(&names.unwrap_or_default())
        .map(<[u8]>::to_vec)
        .collect()
}

fn build_answers(
    driver: &Driver,
    program: Program,
    device: Device,
    arguments: &BuildArguments,
) -> Answers {
    let own = arguments.options.as_ref();
    let ask = |name| {
        let answer = match (driver.build_info(program, device, name), own) {
            (Ok(value), Some(own))
                if name == CL_PROGRAM_BUILD_OPTIONS && value == own.as_bytes_with_nul() =>
            {
                Answer::OwnOptions
            }
            (Ok(value), Some(own)) if name == CL_PROGRAM_BUILD_LOG => {
                without_options(driver.profile.options_quoted_behind, own.as_bytes(), value)
            }
            (answered, _) => answer(answered),
        };
        let forward = |reply| driver.forward_build_info(program, device, name, reply);
        let size = size_alone(name, &answer, &forward);
        size.into_iter().chain([(name, answer)])
    };
    BUILD_QUERIES.into_iter().flat_map(ask).collect()
}

/// A build log, with the options taken out where the driver quotes them: behind the last of these words. A message of the source may
/// hold the same before.
pub(super) fn without_options(words: Option<&str>, options: &[u8], text: Vec<u8>) -> Answer {
    let quotes = |words: &str| FinderRev::new(&[words.as_bytes(), options].concat()).into_owned();
    let quote = words.filter(|_| !options.is_empty()).map(quotes);
    let end = |quote: FinderRev| Some(quote.rfind(&text)? + quote.needle().len());
    let Some(end) = quote.and_then(end) else {
        return Answer::Value(text.into());
    };
    let parts = [&text[..end - options.len()], &text[end..]].map(|part| copy(part).map(Text::from));
    let [Ok(before), Ok(behind)] = parts else {
        return Answer::Withheld;
    };
    Answer::AroundOwnOptions(vec![before, behind])
}

/// What the API shows of a kernel, but may not show of a kernel from a binary. None if the driver does not tell its name.
pub fn kernel_facts(driver: &Driver, kernel: Kernel) -> Option<KernelFacts> {
    let name =
        CString::from_vec_with_nul(driver.kernel_info(kernel, CL_KERNEL_FUNCTION_NAME).ok()?)
            .ok()?;
    let count = driver.kernel_info(kernel, CL_KERNEL_NUM_ARGS).ok()?;
    let count: cl_uint = Number::from_value(&count)?;
    let argument = |index| {
        let of_argument = |query| answer(driver.kernel_arg_info(kernel, index, query));
        ARGUMENT_QUERIES
            .map(|query| (query, without_paths(query, of_argument(query))))
            .to_vec()
    };
    Some(KernelFacts {
        name: name.into_bytes(),
        attributes: answer(driver.kernel_info(kernel, CL_KERNEL_ATTRIBUTES)),
        arguments: (0..count).map(argument).collect(),
        behind_last_argument: argument(count),
    })
}

/// clang names a type without a name by where it stands: `struct (unnamed struct at /opt/a/h.h:2:29)`. Programs in other directories may
/// share the entry.
fn without_paths(query: cl_uint, answer: Answer) -> Answer {
    match answer {
        Answer::Value(value) if query == CL_KERNEL_ARG_TYPE_NAME && value.contains(&b'/') => {
            Answer::Withheld
        }
        answer => answer,
    }
}

fn answer(answered: Result<Vec<u8>, cl_int>) -> Answer {
    match answered {
        Ok(value) => Answer::Value(value.into()),
        // Memory may be available next time.
        Err(CL_OUT_OF_HOST_MEMORY) => Answer::Withheld,
        Err(code) => Answer::Error(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_is_named_by_its_place_is_asked_for_again() {
        let kept = |query, text: &str| without_paths(query, Answer::Value(text.as_bytes().into()));
        let unnamed = "struct (unnamed struct at /opt/a/h.h:2:29)\0";
        assert_eq!(kept(CL_KERNEL_ARG_TYPE_NAME, unnamed), Answer::Withheld);
        for (query, text) in [
            (CL_KERNEL_ARG_TYPE_NAME, "float4*\0"),
            (CL_KERNEL_ARG_TYPE_QUALIFIER, "/"),
        ] {
            assert_eq!(kept(query, text), Answer::Value(text.as_bytes().into()));
        }
    }
}
