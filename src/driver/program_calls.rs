//! Safe calls that create, build and link programs. See `calls` for what safe means.

use std::ffi::{CStr, c_char, c_void};

use opencl_sys::*;

use super::calls::call;
use super::{BuildArguments, Driver};
use crate::cl::{Context, Device, Program};

/// The device list of a call as C takes it.
struct DeviceList(Option<Vec<*mut c_void>>);

impl DeviceList {
    fn of(devices: Option<&[Device]>) -> Self {
        Self(devices.map(|devices| devices.iter().map(|device| device.raw()).collect()))
    }

    fn count(&self) -> cl_uint {
        self.0.as_ref().map_or(0, |list| list.len() as cl_uint)
    }

    fn pointer(&self) -> *const cl_device_id {
        self.0
            .as_ref()
            .map_or(std::ptr::null(), |list| list.as_ptr())
    }
}

impl BuildArguments {
    fn list(&self) -> DeviceList {
        DeviceList::of(self.devices.as_deref())
    }

    fn options_pointer(&self) -> *const c_char {
        self.options
            .as_ref()
            .map_or(std::ptr::null(), |options| options.as_ptr())
    }
}

/// The result of a function that creates a program.
fn made(program: cl_program, code: cl_int, else_code: cl_int) -> Result<Program, cl_int> {
    let program = Program::new(program);
    match (program.is_null(), code) {
        (true, CL_SUCCESS) => Err(else_code),
        (true, code) => Err(code),
        (false, _) => Ok(program),
    }
}

impl Driver {
    /// clCreateProgramWithBinary.
    ///
    /// # Errors
    /// The driver's code, or the status of the first binary that it refuses.
    pub fn create_program_with_binary(
        &self,
        context: Context,
        devices: &[Device],
        binaries: &[&[u8]],
    ) -> Result<Program, cl_int> {
        let function = self
            .below
            .clCreateProgramWithBinary
            .ok_or(CL_INVALID_OPERATION)?;
        let list = DeviceList::of(Some(devices));
        let lengths: Vec<usize> = binaries.iter().map(|binary| binary.len()).collect();
        let mut pointers: Vec<*const u8> = binaries.iter().map(|binary| binary.as_ptr()).collect();
        let mut statuses = vec![CL_SUCCESS; devices.len()];
        let mut code = CL_SUCCESS;
        // SAFETY: as the module says; each array has an element for each device.
        let program = unsafe {
            function(
                context.raw(),
                list.count(),
                list.pointer(),
                lengths.as_ptr(),
                pointers.as_mut_ptr(),
                statuses.as_mut_ptr(),
                &mut code,
            )
        };
        let program = made(program, code, CL_INVALID_BINARY)?;
        match statuses
            .into_iter()
            .chain([code])
            .find(|status| *status != CL_SUCCESS)
        {
            Some(status) => {
                self.release_program(program);
                Err(status)
            }
            None => Ok(program),
        }
    }

    /// clBuildProgram without a callback.
    pub fn build_program(&self, program: Program, arguments: &BuildArguments) -> cl_int {
        let list = arguments.list();
        call!(
            self,
            clBuildProgram(
                program.raw(),
                list.count(),
                list.pointer(),
                arguments.options_pointer(),
                None,
                std::ptr::null_mut(),
            )
        )
    }

    /// clCreateProgramWithSource.
    pub fn create_program_with_source(
        &self,
        context: Context,
        source: &[u8],
    ) -> Result<Program, cl_int> {
        let function = self
            .below
            .clCreateProgramWithSource
            .ok_or(CL_INVALID_OPERATION)?;
        let mut code = CL_SUCCESS;
        // A length of 0 means a terminated string. All others are read by their length, without a copy.
        let text = if source.is_empty() { b"\0" } else { source };
        let mut string = text.as_ptr().cast::<c_char>();
        // SAFETY: as the module says; one string and one length.
        let program = unsafe { function(context.raw(), 1, &mut string, &source.len(), &mut code) };
        made(program, code, CL_INVALID_VALUE)
    }

    /// clCreateProgramWithIL.
    pub fn create_program_with_il(&self, context: Context, code: &[u8]) -> Result<Program, cl_int> {
        let function = self
            .below
            .clCreateProgramWithIL
            .ok_or(CL_INVALID_OPERATION)?;
        let mut error = CL_SUCCESS;
        // SAFETY: as the module says; `code` has that length.
        let program =
            unsafe { function(context.raw(), code.as_ptr().cast(), code.len(), &mut error) };
        made(program, error, CL_INVALID_VALUE)
    }

    /// clSetProgramSpecializationConstant.
    pub fn set_specialization_constant(
        &self,
        program: Program,
        id: cl_uint,
        value: &[u8],
    ) -> cl_int {
        call!(
            self,
            clSetProgramSpecializationConstant(
                program.raw(),
                id,
                value.len(),
                value.as_ptr().cast()
            )
        )
    }

    /// clCompileProgram with embedded headers: names and programs.
    pub fn compile_program(
        &self,
        program: Program,
        arguments: &BuildArguments,
        headers: &[(&CStr, Program)],
    ) -> cl_int {
        let list = arguments.list();
        let programs: Vec<cl_program> = headers.iter().map(|(_, program)| program.raw()).collect();
        let mut names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        // Without headers both arrays must be NULL (OpenCL 3.0, 5.8.6).
        let none = headers.is_empty();
        call!(
            self,
            clCompileProgram(
                program.raw(),
                list.count(),
                list.pointer(),
                arguments.options_pointer(),
                headers.len() as cl_uint,
                if none {
                    std::ptr::null()
                } else {
                    programs.as_ptr()
                },
                if none {
                    std::ptr::null_mut()
                } else {
                    names.as_mut_ptr()
                },
                None,
                std::ptr::null_mut(),
            )
        )
    }

    /// clLinkProgram.
    ///
    /// # Errors
    /// The driver's code, even if it returns a program that is not linked (measured: Intel's CPU runtime, rusticl).
    pub fn link_program(
        &self,
        context: Context,
        arguments: &BuildArguments,
        inputs: &[Program],
    ) -> Result<Program, cl_int> {
        let function = self.below.clLinkProgram.ok_or(CL_INVALID_OPERATION)?;
        let list = arguments.list();
        let inputs: Vec<cl_program> = inputs.iter().map(|input| input.raw()).collect();
        let mut code = CL_SUCCESS;
        // SAFETY: as the module says; each array has as many elements as is said.
        let program = unsafe {
            function(
                context.raw(),
                list.count(),
                list.pointer(),
                arguments.options_pointer(),
                inputs.len() as cl_uint,
                inputs.as_ptr(),
                None,
                std::ptr::null_mut(),
                &mut code,
            )
        };
        let program = made(program, code, CL_LINK_PROGRAM_FAILURE)?;
        if code == CL_SUCCESS {
            return Ok(program);
        }
        self.release_program(program);
        Err(code)
    }
}
