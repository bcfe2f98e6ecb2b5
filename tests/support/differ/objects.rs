//! The objects of a case, by name.

use std::collections::HashMap;
use std::ptr;

use opencl_sys::*;

use crate::cl::{Handle, call};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Context,
    Program,
    Kernel,
}

#[derive(Clone, Copy)]
pub struct Object {
    pub kind: Kind,
    pub handle: Handle,
    /// How often this program may still release it.
    pub references: u32,
}

pub struct Objects {
    pub platform: Handle,
    named: HashMap<String, Object>,
    /// Names in the order of their creation.
    order: Vec<String>,
    /// The devices of each context.
    pub devices: HashMap<String, Vec<String>>,
    /// The context of each program, and the program of each kernel.
    pub parents: HashMap<String, String>,
}

// SAFETY: OpenCL objects may be used by any thread; what is called on a thread is waited for before the next call.
unsafe impl Send for Objects {}

impl Objects {
    /// With the devices of the first platform that has any.
    pub fn open() -> Result<Self, String> {
        let mut platforms = [ptr::null_mut(); 16];
        let mut count = 0;
        let code = call!(clGetPlatformIDs(16, platforms.as_mut_ptr(), &mut count));
        if code != CL_SUCCESS {
            return Err(format!("clGetPlatformIDs: {code}"));
        }
        for platform in platforms.into_iter().take(count.min(16) as usize) {
            let mut devices = [ptr::null_mut(); 16];
            let mut count = 0;
            let list = devices.as_mut_ptr();
            let all = CL_DEVICE_TYPE_ALL;
            let code = call!(clGetDeviceIDs(platform, all, 16, list, &mut count));
            if code == CL_SUCCESS && count > 0 {
                let mut objects = Objects {
                    platform,
                    named: HashMap::new(),
                    order: Vec::new(),
                    devices: HashMap::new(),
                    parents: HashMap::new(),
                };
                for (index, device) in devices.iter().take(count.min(16) as usize).enumerate() {
                    objects.add(&format!("device-{index}"), Kind::Device, *device);
                }
                return Ok(objects);
            }
        }
        Err("no platform with a device".to_owned())
    }

    pub fn add(&mut self, id: &str, kind: Kind, handle: Handle) {
        let object = Object {
            kind,
            handle,
            references: u32::from(!handle.is_null()),
        };
        self.named.insert(id.to_owned(), object);
        self.order.retain(|name| name != id);
        self.order.push(id.to_owned());
    }

    /// One that is alive.
    pub fn get(&self, id: &str, kind: Kind) -> Option<Handle> {
        let found = self.named.get(id)?;
        (found.kind == kind && found.references > 0).then_some(found.handle)
    }

    pub fn object(&mut self, id: &str) -> Option<&mut Object> {
        self.named
            .get_mut(id)
            .filter(|object| object.references > 0)
    }

    /// All of a list, or none.
    pub fn all(&self, ids: &[String], kind: Kind) -> Option<Vec<Handle>> {
        ids.iter().map(|id| self.get(id, kind)).collect()
    }

    /// What this handle is called: the address of an object that is gone may be another's now.
    pub fn name(&self, handle: Handle) -> String {
        if handle.is_null() {
            return "NULL".to_owned();
        }
        let newest = self
            .order
            .iter()
            .rev()
            .find(|id| self.named[*id].handle == handle);
        newest.map_or("unknown".to_owned(), String::clone)
    }

    /// The name of the context, and of the devices, of a program.
    pub fn devices_of(&self, program: &str) -> Vec<String> {
        let context = self.parents.get(program);
        let devices = context.and_then(|context| self.devices.get(context));
        devices.cloned().unwrap_or_default()
    }
}
