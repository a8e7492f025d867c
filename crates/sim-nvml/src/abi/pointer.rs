//! Pointers from a C caller. All reads and writes through them are in this file.
//!
//! The safety argument is always NVML's contract: a pointer argument is either null (the call then returns "Invalid Argument") or aligned
//! and valid for what the function's documentation says. Only a C caller can create one: the fields are private and there is no
//! constructor.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::CallResult;
use crate::engine::status::Status;

/// A pointer to one `T`, or to several in a row if the function has a count.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn put(&self, value: T) -> CallResult {
        self.put_at(0, value)
    }

    pub(crate) fn get(&self) -> Result<T, Status> {
        self.get_at(0)
    }

    /// Writes element `index`. The caller has checked it against the count from C.
    pub(crate) fn put_at(&self, index: usize, value: T) -> CallResult {
        self.checked()?;
        // SAFETY: not null, and by NVML's contract aligned and valid for writes of the counted elements.
        unsafe { self.0.add(index).write(value) };
        Ok(())
    }

    /// Reads element `index`. The caller has checked it against the count from C.
    pub(crate) fn get_at(&self, index: usize) -> Result<T, Status> {
        self.checked()?;
        // SAFETY: not null, and by NVML's contract aligned and valid for reads of the counted elements;
        // every T used here is made of integers, floats and raw pointers, valid for any bits.
        Ok(unsafe { self.0.add(index).read() })
    }

    /// Returns the version number at the start of a struct, without reading anything after it: the rest may be shorter than `T`.
    pub(crate) fn version(&self) -> Result<u32, Status> {
        self.checked()?;
        // SAFETY: not null, and every versioned struct of NVML begins with an aligned `unsigned int`.
        Ok(unsafe { self.0.cast::<u32>().read() })
    }

    /// Returns the same pointer with another type: another version of the struct.
    pub(crate) fn as_type<U: Copy>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Returns a pointer to the elements that follow this struct directly.
    pub(crate) fn followed_by<U: Copy>(&self) -> Result<Out<U>, Status> {
        self.checked()?;
        // SAFETY: not null; the struct is a header, its array begins right behind it in one allocation.
        Ok(Out(unsafe { self.0.add(1) }.cast()))
    }

    fn checked(&self) -> CallResult {
        if self.0.is_null() {
            Err(Status::InvalidArgument)
        } else {
            Ok(())
        }
    }
}

/// A buffer for text with its terminating zero.
pub(crate) type TextOut = Out<c_char>;

impl TextOut {
    /// Copies the text if it fits into `length` bytes with its zero.
    pub(crate) fn put_text(&self, length: u32, text: &str) -> CallResult {
        self.checked()?;
        if text.len() >= length as usize {
            return Err(Status::InsufficientSize);
        }
        // SAFETY: not null, and the caller vouches for `length` writable bytes, of which fewer are used.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Text with a terminating zero.
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    /// Returns a copy of the text.
    pub(crate) fn get(&self) -> Result<String, Status> {
        if self.0.is_null() {
            return Err(Status::InvalidArgument);
        }
        // SAFETY: not null, and by NVML's contract terminated by a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| Status::InvalidArgument)
    }
}
