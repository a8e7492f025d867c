//! The C interface: a `sqlite3_vfs` whose calls go through a [`Disk`] to SQLite's own unix layer.
//!
//! ```text
//! memory that SQLite allocates for a file:   File { methods, disk, handle } | the unix layer's own file
//! ```
//! All unsafe code of the tests is in this file.
#![expect(unsafe_code, reason = "SQLite's file layer is a C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libsqlite3_sys as ffi;
use libsqlite3_sys::{sqlite3_file, sqlite3_io_methods, sqlite3_vfs};

use super::disk::{Disk, Handle};

/// The part of a file in front of the unix layer's own file.
#[repr(C)]
struct File {
    base: sqlite3_file,
    disk: &'static Disk,
    /// From a `Box`; null for a temporary file, whose calls are passed through.
    handle: *mut Handle,
}

/// Registers a disk with SQLite under its name.
pub(super) fn register(disk: &'static Disk) {
    let name = CString::new(disk.name()).unwrap().into_raw();
    // SAFETY: the unix layer is registered by sqlite3_initialize and never freed; its description is plain data.
    let unix = unsafe {
        assert_eq!(ffi::sqlite3_initialize(), ffi::SQLITE_OK);
        *ffi::sqlite3_vfs_find(c"unix".as_ptr())
    };
    let own = c_int::try_from(size_of::<File>()).unwrap();
    // Calls that are not about files go to the unix layer: those functions ignore their first argument.
    let vfs = Box::leak(Box::new(sqlite3_vfs {
        iVersion: 2,
        szOsFile: unix.szOsFile + own,
        pNext: ptr::null_mut(),
        zName: name,
        pAppData: ptr::from_ref(disk).cast_mut().cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        ..unix
    }));
    // SAFETY: the description and its name live for ever.
    assert_eq!(unsafe { ffi::sqlite3_vfs_register(vfs, 0) }, ffi::SQLITE_OK);
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    // Without memory-mapped files, which are all that version 3 adds.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

fn unix() -> *mut sqlite3_vfs {
    // SAFETY: a look-up by a name that lives for ever.
    unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) }
}

/// # Safety
/// `vfs` was created by [`register`].
unsafe fn disk_of(vfs: *mut sqlite3_vfs) -> &'static Disk {
    // SAFETY: register put a disk there that is never freed.
    unsafe { &*(*vfs).pAppData.cast::<Disk>() }
}

/// # Safety
/// `name` is a C string that lives for the call. It is not null.
unsafe fn path_of<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Returns the unix layer's part of a file, and its methods.
///
/// # Safety
/// SQLite allocated `file` for a file of this VFS, and has opened it.
unsafe fn inner(file: *mut sqlite3_file) -> (*mut sqlite3_file, &'static sqlite3_io_methods) {
    // SAFETY: szOsFile asked for our File and the unix layer's file behind it; open filled both.
    unsafe {
        let inner = file.cast::<File>().add(1).cast::<sqlite3_file>();
        (inner, &*(*inner).pMethods)
    }
}

/// # Safety
/// The same as for [`inner`].
unsafe fn parts<'a>(file: *mut sqlite3_file) -> (&'static Disk, Option<&'a mut Handle>) {
    // SAFETY: open filled both; SQLite uses a file from one thread at a time.
    unsafe {
        let file = file.cast::<File>();
        ((*file).disk, (*file).handle.as_mut())
    }
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(ffi::SQLITE_OK)
}

// === the folder ===

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives szOsFile bytes at `file`, and pointers that live for the call; our part is written before it is
    // read. A file that could not be opened has no methods, so SQLite does not close it.
    unsafe {
        let disk = disk_of(vfs);
        let ours = file.cast::<File>();
        let inner = ours.add(1).cast::<sqlite3_file>();
        (*ours).base.pMethods = ptr::null();
        (*inner).pMethods = ptr::null();
        let raw =
            || (*unix()).xOpen.expect("the unix layer opens files")(unix(), name, inner, flags, out_flags);
        let handle = if name.is_null() {
            match raw() {
                ffi::SQLITE_OK => ptr::null_mut(),
                code => return code,
            }
        } else {
            match disk.open(path_of(name), flags, raw) {
                Ok(handle) => Box::into_raw(Box::new(handle)),
                Err(code) => return code,
            }
        };
        ptr::addr_of_mut!((*ours).disk).write(disk);
        (*ours).handle = handle;
        (*ours).base.pMethods = &raw const METHODS;
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_names: c_int) -> c_int {
    // SAFETY: SQLite's pointers live for the call.
    unsafe {
        let raw = || (*unix()).xDelete.expect("the unix layer deletes files")(unix(), name, 0);
        disk_of(vfs).delete(path_of(name), sync_names & 1 != 0, raw)
    }
}

unsafe extern "C" fn access(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: passed through.
    unsafe { (*unix()).xAccess.expect("the unix layer has it")(unix(), name, flags, out) }
}

unsafe extern "C" fn full_pathname(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: passed through.
    unsafe { (*unix()).xFullPathname.expect("the unix layer has it")(unix(), name, len, out) }
}

// === a file ===

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes an opened file once.
    unsafe {
        let (inner, methods) = inner(file);
        let handle = (*file.cast::<File>()).handle;
        if !handle.is_null() {
            drop(Box::from_raw(handle));
        }
        (*file).pMethods = ptr::null();
        methods.xClose.expect("the unix layer has it")(inner)
    }
}

unsafe extern "C" fn read(file: *mut sqlite3_file, to: *mut c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: an opened file; `to` has `len` bytes.
    unsafe {
        let (disk, handle) = parts(file);
        if let Some(handle) = handle
            && let Err(code) = disk.read(handle)
        {
            return code;
        }
        let (inner, methods) = inner(file);
        methods.xRead.expect("the unix layer has it")(inner, to, len, at)
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: an opened file; `from` has `len` bytes, and the raw call gets no more than those.
    unsafe {
        let (inner, methods) = inner(file);
        let bytes = std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(len).unwrap());
        let raw = |some: &[u8]| {
            let len = c_int::try_from(some.len()).unwrap();
            methods.xWrite.expect("the unix layer has it")(inner, some.as_ptr().cast(), len, at)
        };
        match parts(file) {
            (disk, Some(handle)) => code(disk.write(handle, u64::try_from(at).unwrap(), bytes, raw)),
            (_, None) => raw(bytes),
        }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, len: i64) -> c_int {
    // SAFETY: an opened file.
    unsafe {
        let (inner, methods) = inner(file);
        let raw = || methods.xTruncate.expect("the unix layer has it")(inner, len);
        match parts(file) {
            (disk, Some(handle)) => code(disk.truncate(handle, u64::try_from(len).unwrap(), raw)),
            (_, None) => raw(),
        }
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: an opened file.
    unsafe {
        match parts(file) {
            (disk, Some(handle)) => code(disk.sync(handle)),
            (_, None) => ffi::SQLITE_OK,
        }
    }
}

// === what is the unix layer's own business ===

macro_rules! passed_through {
    ($($name:ident = $method:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $argument: $kind)*) -> $out {
            // SAFETY: an opened file, and arguments that are SQLite's own.
            unsafe {
                let (inner, methods) = inner(file);
                methods.$method.expect("the unix layer has it")(inner $(, $argument)*)
            }
        }
    )*};
}

passed_through! {
    file_size = xFileSize(out: *mut i64) -> c_int;
    lock = xLock(level: c_int) -> c_int;
    unlock = xUnlock(level: c_int) -> c_int;
    check_reserved_lock = xCheckReservedLock(out: *mut c_int) -> c_int;
    file_control = xFileControl(op: c_int, argument: *mut c_void) -> c_int;
    sector_size = xSectorSize() -> c_int;
    device_characteristics = xDeviceCharacteristics() -> c_int;
    shm_map = xShmMap(page: c_int, bytes: c_int, extend: c_int, out: *mut *mut c_void) -> c_int;
    shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int;
    shm_barrier = xShmBarrier() -> ();
    shm_unmap = xShmUnmap(delete: c_int) -> c_int;
}
