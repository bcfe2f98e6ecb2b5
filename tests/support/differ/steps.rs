//! The calls of a case.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::document::{Argument, Call, Lengths};
use crate::facts::{self, Odd};
use crate::objects::{Kind, Objects};
use crate::state;

/// How long a callback is waited for where the driver has promised one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that follow a string whose length is given, and must not count.
const TAIL: &[u8] = b"\n#error beyond the end\n";

/// A step cannot be carried out: what it names is not there.
struct Absent;

/// All of them in order. `prefix` tells the threads' lines apart.
pub fn run(objects: &mut Objects, calls: &[Call], prefix: &str) {
    for (index, call) in calls.iter().enumerate() {
        let label = format!("{prefix}{index}");
        if step(objects, call, &label).is_err() {
            println!("{label}: left out");
        }
    }
}

/// Writes a file below the working directory, or removes it.
pub fn write(path: &str, text: Option<&String>) -> Result<(), String> {
    let path = Path::new(path);
    let done = match text {
        Some(text) => path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(path, text)),
        None => std::fs::remove_file(path),
    };
    done.map_err(|error| format!("{}: {error}", path.display()))
}

fn step(objects: &mut Objects, call: &Call, label: &str) -> Result<(), Absent> {
    match call {
        Call::Context { id, devices } => context(objects, label, id, devices)?,
        Call::Parts { id, device } => parts(objects, label, id, device)?,
        Call::Source {
            id,
            context,
            strings,
            lengths,
        } => source(objects, label, (id, context), strings, *lengths)?,
        Call::Build {
            program,
            devices,
            options,
            notify,
        } => {
            let handle = objects.get(program, Kind::Program).ok_or(Absent)?;
            let devices = objects.all(devices, Kind::Device).ok_or(Absent)?;
            let (report, told) = report(*notify);
            let code = cl::build_for(handle, &devices, options.as_deref(), report);
            println!("{label}: build: code {code}");
            told.print(objects, label, code);
        }
        Call::Compile {
            program,
            devices,
            options,
            headers,
            notify,
        } => {
            let handle = objects.get(program, Kind::Program).ok_or(Absent)?;
            let devices = objects.all(devices, Kind::Device).ok_or(Absent)?;
            let mut named = Vec::new();
            for (name, header) in headers {
                let header = objects.get(header, Kind::Program).ok_or(Absent)?;
                named.push((name.as_str(), header));
            }
            let (report, told) = report(*notify);
            let code = cl::compile_for(handle, &devices, options.as_deref(), &named, report);
            println!("{label}: compile: code {code}");
            told.print(objects, label, code);
        }
        Call::Link {
            id,
            context,
            devices,
            options,
            inputs,
            notify,
        } => {
            let handle = objects.get(context, Kind::Context).ok_or(Absent)?;
            let devices = objects.all(devices, Kind::Device).ok_or(Absent)?;
            let inputs = objects.all(inputs, Kind::Program).ok_or(Absent)?;
            let (report, told) = report(*notify);
            let (program, code) =
                cl::link_for(handle, &devices, options.as_deref(), &inputs, report);
            println!("{label}: link: code {code} NULL {}", program.is_null());
            objects.add(id, Kind::Program, program);
            objects.parents.insert(id.clone(), context.clone());
            told.print(objects, label, code);
        }
        Call::Binary {
            id,
            context,
            program,
        } => binary(objects, label, id, context, program)?,
        Call::Kernel { id, program, name } => {
            let handle = objects.get(program, Kind::Program).ok_or(Absent)?;
            let (kernel, code) = cl::kernel(handle, name);
            println!("{label}: kernel: code {code}");
            objects.add(id, Kind::Kernel, kernel);
            objects.parents.insert(id.clone(), program.clone());
        }
        Call::Kernels { id, program, room } => kernels(objects, label, id, program, *room)?,
        Call::Clone { id, kernel } => {
            let handle = objects.get(kernel, Kind::Kernel).ok_or(Absent)?;
            let mut code = 1;
            let clone = call!(clCloneKernel(handle, &mut code));
            println!("{label}: clone: code {code}");
            let program = objects.parents.get(kernel).cloned().unwrap_or_default();
            objects.add(id, Kind::Kernel, clone);
            objects.parents.insert(id.clone(), program);
        }
        Call::Run { kernel, arguments } => launch(objects, label, kernel, arguments)?,
        Call::Retain { object } => {
            let object = objects.object(object).ok_or(Absent)?;
            let handle = object.handle;
            let code = match object.kind {
                Kind::Program => call!(clRetainProgram(handle)),
                Kind::Kernel => call!(clRetainKernel(handle)),
                Kind::Context | Kind::Device => return Err(Absent),
            };
            object.references += u32::from(code == CL_SUCCESS);
            println!("{label}: retain: code {code}");
        }
        Call::Release { object } => {
            let object = objects.object(object).ok_or(Absent)?;
            object.references -= 1;
            let handle = object.handle;
            let code = match object.kind {
                Kind::Program => call!(clReleaseProgram(handle)),
                Kind::Kernel => call!(clReleaseKernel(handle)),
                Kind::Context => call!(clReleaseContext(handle)),
                Kind::Device => call!(clReleaseDevice(handle)),
            };
            println!("{label}: release: code {code}");
        }
        Call::Facts { object } => facts::all(objects, label, object),
        Call::Ask {
            object,
            query,
            device,
            index,
            param,
            size,
            more,
            without_value,
            without_size,
        } => {
            let handle = objects.object(object).ok_or(Absent)?.handle;
            let device = device.as_ref().and_then(|id| objects.get(id, Kind::Device));
            let odd = Odd {
                query: *query,
                device: device.unwrap_or(ptr::null_mut()),
                index: *index,
                param: *param,
                size: *size,
                more: *more,
                without_value: *without_value,
                without_size: *without_size,
            };
            facts::odd(label, handle, odd);
        }
        Call::Unload => {
            let code = call!(clUnloadPlatformCompiler(objects.platform));
            println!("{label}: unload: code {code}");
        }
        Call::Variable { name, value } => match value {
            // SAFETY: a driver's own threads may read the environment meanwhile, as in any application that does this.
            Some(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var(name) },
        },
        Call::File { path, text } => {
            if let Err(error) = write(path, text.as_ref()) {
                println!("{label}: {error}");
            }
        }
        Call::State { state } => state::set(*state),
        Call::Thread { stack, calls } => on_a_thread(objects, label, *stack, calls),
    }
    Ok(())
}

fn context(objects: &mut Objects, label: &str, id: &str, devices: &[String]) -> Result<(), Absent> {
    let handles = objects.all(devices, Kind::Device).ok_or(Absent)?;
    let (mut code, none) = (1, ptr::null_mut());
    let context = call!(clCreateContext(
        ptr::null(),
        handles.len() as cl_uint,
        handles.as_ptr(),
        None,
        none,
        &mut code
    ));
    println!("{label}: context: code {code}");
    objects.add(id, Kind::Context, context);
    objects.devices.insert(id.to_owned(), devices.to_vec());
    Ok(())
}

fn parts(objects: &mut Objects, label: &str, id: &str, device: &str) -> Result<(), Absent> {
    let handle = objects.get(device, Kind::Device).ok_or(Absent)?;
    let properties = [
        CL_DEVICE_PARTITION_EQUALLY as cl_device_partition_property,
        1,
        0,
    ];
    let (mut parts, mut count) = ([ptr::null_mut(); 64], 0);
    let (places, most) = (parts.as_mut_ptr(), parts.len() as cl_uint);
    let code = call!(clCreateSubDevices(
        handle,
        properties.as_ptr(),
        most,
        places,
        &mut count
    ));
    println!("{label}: parts: code {code}");
    if code == CL_SUCCESS {
        for (index, part) in parts.iter().take(count.min(64) as usize).enumerate() {
            objects.add(&format!("{id}-{index}"), Kind::Device, *part);
        }
    }
    Ok(())
}

fn source(
    objects: &mut Objects,
    label: &str,
    (id, context): (&String, &String),
    strings: &[String],
    lengths: Lengths,
) -> Result<(), Absent> {
    let handle = objects.get(context, Kind::Context).ok_or(Absent)?;
    let texts: Vec<Vec<u8>> = strings
        .iter()
        .map(|text| {
            let mut bytes = text.clone().into_bytes();
            if matches!(lengths, Lengths::Given) {
                bytes.extend(TAIL);
            }
            bytes.push(0);
            bytes
        })
        .collect();
    let mut pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr().cast()).collect();
    let sizes: Vec<usize> = strings
        .iter()
        .map(|text| match lengths {
            Lengths::Given => text.len(),
            Lengths::Absent | Lengths::Zero => 0,
        })
        .collect();
    let sizes = match lengths {
        Lengths::Absent => ptr::null(),
        Lengths::Given | Lengths::Zero => sizes.as_ptr(),
    };
    let mut code = 1;
    let program = call!(clCreateProgramWithSource(
        handle,
        pointers.len() as cl_uint,
        pointers.as_mut_ptr(),
        sizes,
        &mut code
    ));
    println!("{label}: source: code {code}");
    objects.add(id, Kind::Program, program);
    objects.parents.insert(id.clone(), context.clone());
    Ok(())
}

fn binary(
    objects: &mut Objects,
    label: &str,
    id: &str,
    context: &str,
    program: &str,
) -> Result<(), Absent> {
    let handle = objects.get(program, Kind::Program).ok_or(Absent)?;
    let place = objects.get(context, Kind::Context).ok_or(Absent)?;
    let devices = objects.devices_of(program);
    let devices = objects.all(&devices, Kind::Device).ok_or(Absent)?;
    let mut sizes = vec![0_usize; devices.len()];
    let code = call!(clGetProgramInfo(
        handle,
        CL_PROGRAM_BINARY_SIZES,
        size_of_val(sizes.as_slice()),
        sizes.as_mut_ptr().cast(),
        ptr::null_mut()
    ));
    // PoCL may say anything of devices that were not built.
    let present: Vec<bool> = sizes.iter().map(|size| *size > 0).collect();
    let usable = sizes.iter().all(|size| (1..1 << 30).contains(size));
    println!("{label}: binary sizes: code {code} present {present:?}");
    if code != CL_SUCCESS || !usable {
        return Err(Absent);
    }
    let mut binaries: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
    let mut places: Vec<*mut u8> = binaries
        .iter_mut()
        .map(|binary| binary.as_mut_ptr())
        .collect();
    let code = call!(clGetProgramInfo(
        handle,
        CL_PROGRAM_BINARIES,
        size_of_val(places.as_slice()),
        places.as_mut_ptr().cast::<c_void>(),
        ptr::null_mut()
    ));
    println!("{label}: binaries: code {code}");
    if code != CL_SUCCESS {
        return Err(Absent);
    }
    let (made, status, code) = cl::program_from_binaries(place, &devices, &binaries);
    println!("{label}: from binaries: code {code} status {status:?}");
    objects.add(id, Kind::Program, made);
    objects.parents.insert(id.to_owned(), context.to_owned());
    Ok(())
}

fn kernels(
    objects: &mut Objects,
    label: &str,
    id: &str,
    program: &str,
    room: Option<u32>,
) -> Result<(), Absent> {
    let handle = objects.get(program, Kind::Program).ok_or(Absent)?;
    let mut count = 0;
    let room = match room {
        Some(room) => room.min(64),
        None => {
            let code = call!(clCreateKernelsInProgram(
                handle,
                0,
                ptr::null_mut(),
                &mut count
            ));
            println!("{label}: number of kernels: code {code} {count}");
            if code != CL_SUCCESS || count == 0 {
                return Err(Absent);
            }
            count.min(64)
        }
    };
    // Never an empty array: NULL would be asked for the number only.
    let mut kernels = vec![ptr::null_mut(); room.max(1) as usize];
    let mut count = cl_uint::MAX;
    let code = call!(clCreateKernelsInProgram(
        handle,
        room,
        kernels.as_mut_ptr(),
        &mut count
    ));
    println!(
        "{label}: kernels: code {code} number {}",
        count.cast_signed()
    );
    for (index, kernel) in kernels.iter().enumerate() {
        let id = format!("{id}-{index}");
        if code == CL_SUCCESS && !kernel.is_null() {
            objects.add(&id, Kind::Kernel, *kernel);
            objects.parents.insert(id, program.to_owned());
        }
    }
    Ok(())
}

fn launch(
    objects: &Objects,
    label: &str,
    kernel: &str,
    arguments: &[Argument],
) -> Result<(), Absent> {
    let handle = objects.get(kernel, Kind::Kernel).ok_or(Absent)?;
    let program = objects.parents.get(kernel).ok_or(Absent)?;
    let context = objects.parents.get(program).ok_or(Absent)?;
    let device = objects.devices_of(program).first().cloned();
    let device = device.and_then(|device| objects.get(&device, Kind::Device));
    let device = device.ok_or(Absent)?;
    let context = objects.get(context, Kind::Context).ok_or(Absent)?;
    let mut code = 1;
    let queue = call!(clCreateCommandQueue(context, device, 0, &mut code));
    if code != CL_SUCCESS {
        println!("{label}: queue: code {code}");
        return Ok(());
    }
    let mut buffers = Vec::new();
    let before = references(handle);
    match launch_on(queue, context, handle, arguments, &mut buffers) {
        Ok(words) => println!("{label}: run: {words:x?}"),
        Err((what, code)) => println!("{label}: {what}: code {code}"),
    }
    // The queue threads of PoCL and rusticl keep the kernel for a moment after clFinish: it would count, and be attached.
    let start = Instant::now();
    while references(handle) != before && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for buffer in buffers {
        call!(clReleaseMemObject(buffer));
    }
    call!(clReleaseCommandQueue(queue));
    Ok(())
}

fn references(kernel: Handle) -> Option<cl_uint> {
    let mut count: cl_uint = 0;
    let code = call!(clGetKernelInfo(
        kernel,
        CL_KERNEL_REFERENCE_COUNT,
        size_of::<cl_uint>(),
        (&raw mut count).cast(),
        ptr::null_mut()
    ));
    (code == CL_SUCCESS).then_some(count)
}

/// The words of the first buffer.
fn launch_on(
    queue: Handle,
    context: Handle,
    kernel: Handle,
    arguments: &[Argument],
    buffers: &mut Vec<Handle>,
) -> Result<Vec<u64>, (&'static str, cl_int)> {
    let check = |what, code| match code {
        CL_SUCCESS => Ok(()),
        code => Err((what, code)),
    };
    let mut first = None;
    for (index, argument) in arguments.iter().enumerate() {
        let (size, value): (usize, *const c_void) = match argument {
            Argument::Int(value) => (size_of::<i32>(), ptr::from_ref(value).cast()),
            Argument::Float(value) => (size_of::<f32>(), ptr::from_ref(value).cast()),
            Argument::Local(bytes) => (*bytes, ptr::null()),
            Argument::Words(count) => {
                let mut words: Vec<u64> = (0..*count as u64).collect();
                let mut code = 1;
                let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
                let buffer = call!(clCreateBuffer(
                    context,
                    flags,
                    size_of_val(words.as_slice()),
                    words.as_mut_ptr().cast(),
                    &mut code
                ));
                check("buffer", code)?;
                buffers.push(buffer);
                first.get_or_insert((buffer, *count));
                let place = buffers.last().expect("just pushed");
                let code = call!(clSetKernelArg(
                    kernel,
                    index as cl_uint,
                    size_of::<Handle>(),
                    ptr::from_ref(place).cast()
                ));
                check("argument", code)?;
                continue;
            }
        };
        let code = call!(clSetKernelArg(kernel, index as cl_uint, size, value));
        check("argument", code)?;
    }
    let (none, items) = (ptr::null_mut(), 1_usize);
    let code = call!(clEnqueueNDRangeKernel(
        queue,
        kernel,
        1,
        ptr::null(),
        &items,
        ptr::null(),
        0,
        ptr::null(),
        none
    ));
    check("enqueue", code)?;
    let Some((buffer, count)) = first else {
        check("finish", call!(clFinish(queue)))?;
        return Ok(Vec::new());
    };
    let mut words = vec![0_u64; count];
    let code = call!(clEnqueueReadBuffer(
        queue,
        buffer,
        CL_TRUE,
        0,
        size_of_val(words.as_slice()),
        words.as_mut_ptr().cast(),
        0,
        ptr::null(),
        none
    ));
    check("read", code)?;
    check("finish", call!(clFinish(queue)))?;
    Ok(words)
}

/// What a callback has told: the programs that it was called with.
#[derive(Default)]
struct Told {
    programs: Mutex<Vec<usize>>,
    called: Condvar,
}

/// Waits for a callback, where there is one.
struct Waiting(Option<Arc<Told>>);

unsafe extern "C" fn notify(program: Handle, data: *mut c_void) {
    // SAFETY: `report` has given one count of it to this function, which is never taken back: a driver may call late.
    let told = unsafe { &*data.cast::<Told>() };
    told.programs
        .lock()
        .expect("not poisoned")
        .push(program as usize);
    told.called.notify_all();
}

fn report(notified: bool) -> (cl::Report, Waiting) {
    if !notified {
        return (cl::NO_REPORT, Waiting(None));
    }
    let told = Arc::new(Told::default());
    let data = Arc::into_raw(told.clone()).cast_mut().cast();
    ((Some(notify), data), Waiting(Some(told)))
}

impl Waiting {
    /// Prints what the callback was told, and the thread's floating-point state after the call.
    fn print(self, objects: &Objects, label: &str, code: cl_int) {
        if let Some(told) = self.0 {
            let programs = told.programs.lock().expect("not poisoned");
            let (programs, _) = told
                .called
                .wait_timeout_while(programs, PATIENCE, |programs| {
                    programs.is_empty() && code == CL_SUCCESS
                })
                .expect("not poisoned");
            let names: Vec<String> = programs
                .iter()
                .map(|program| objects.name(*program as Handle))
                .collect();
            println!("{label}: called back with {names:?}");
        }
        println!("{label}: state {}", state::text());
    }
}

fn on_a_thread(objects: &mut Objects, label: &str, stack: Option<usize>, calls: &[Call]) {
    std::thread::scope(|scope| {
        let mut builder = std::thread::Builder::new();
        if let Some(stack) = stack {
            builder = builder.stack_size(stack);
        }
        let prefix = format!("{label}.");
        match builder.spawn_scoped(scope, move || run(objects, calls, &prefix)) {
            Ok(thread) => drop(thread.join()),
            Err(error) => println!("{label}: no thread: {:?}", error.kind()),
        }
    });
}
