//! A driver as an application sees it, for the baker: its functions are those in its table, our hooks among them.

use std::ops::Deref;

use opencl_sys::*;

use super::calls::{call, devices};
use super::{Driver, DriverLibrary};
use crate::cl::{Context, Device, Platform, info};

/// A platform, and its driver's table with our hooks: the safe calls of [`Driver`] reach the hooks.
pub struct Application {
    driver: Driver,
    platform: Platform,
}

impl Deref for Application {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl Application {
    /// The platforms of a library whose tables are hooked.
    pub fn all_of(library: &DriverLibrary) -> Vec<Application> {
        let of_platform = |platform: &Platform| {
            let driver = Driver::of_platform(*platform)?.through_hooks();
            Some(Application {
                driver,
                platform: *platform,
            })
        };
        library.platforms().iter().filter_map(of_platform).collect()
    }

    /// The driver whose hooks are called.
    pub fn hooked(&self) -> &'static Driver {
        Driver::at(self.driver.index())
    }

    /// Whether it is this platform.
    pub fn is_of(&self, platform: Platform) -> bool {
        self.platform == platform
    }

    /// CL_PLATFORM_NAME; empty if the driver does not tell it.
    pub fn name(&self) -> Vec<u8> {
        let name = self.driver.platform_info(self.platform, CL_PLATFORM_NAME);
        let mut name = name.unwrap_or_default();
        while name.last() == Some(&0) {
            name.pop();
        }
        name
    }

    /// All devices of the platform.
    ///
    /// # Errors
    /// The driver's code.
    pub fn devices(&self) -> Result<Vec<Device>, cl_int> {
        let value = info::ask(|size, value, size_ret| {
            let room = size / size_of::<cl_device_id>();
            let mut count = 0;
            let code = call!(
                self.driver,
                clGetDeviceIDs(
                    self.platform.raw(),
                    CL_DEVICE_TYPE_ALL,
                    room as cl_uint,
                    value.cast(),
                    &mut count,
                )
            );
            if code == CL_SUCCESS {
                // SAFETY: `ask` passes a valid pointer.
                unsafe { size_ret.write(count as usize * size_of::<cl_device_id>()) };
            }
            code
        })?;
        devices(&value)
    }

    /// clCreateContext.
    ///
    /// # Errors
    /// The driver's code.
    pub fn create_context(&self, devices: &[Device]) -> Result<Context, cl_int> {
        let function = self.driver.below.clCreateContext;
        let function = function.ok_or(CL_INVALID_OPERATION)?;
        let devices: Vec<_> = devices.iter().map(|device| device.raw()).collect();
        let mut code = CL_SUCCESS;
        // SAFETY: devices of this driver, as many as is said; neither properties nor a callback.
        let context = unsafe {
            function(
                std::ptr::null(),
                devices.len() as cl_uint,
                devices.as_ptr(),
                None,
                std::ptr::null_mut(),
                &mut code,
            )
        };
        match Context::new(context) {
            context if context.is_null() => Err(code),
            context => Ok(context),
        }
    }

    /// clReleaseContext.
    pub fn release_context(&self, context: Context) {
        call!(self.driver, clReleaseContext(context.raw()));
    }
}
