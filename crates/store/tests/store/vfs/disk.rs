//! A disk: receives every call of SQLite, lets it fail if a plan says so, and records it for the power loss.

use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use libsqlite3_sys as ffi;

use super::faults::{Call, Fault, Files, Plan, Rng};
use super::media::{Inode, Media, name_of};
use super::sys;
use super::trace::Trace;

/// A disk under one folder. It is never freed, because SQLite keeps its name. A test has at most a few hundred, and drops their
/// contents.
#[derive(Debug)]
pub(crate) struct Disk {
    name: &'static str,
    state: Mutex<State>,
    /// Notified when a call begins to be held, and when a hold ends.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    media: Media,
    rng: Rng,
    plans: Vec<Plan>,
    struck: u64,
    trace: Trace,
    /// The number of calls so far that change something; below, the number at which power is lost.
    changes: u64,
    cut_at: u64,
    /// True if fsync of a journal does nothing, as with `synchronous=NORMAL`.
    lazy_journals: bool,
    /// Calls that must wait, by the number of their hold; below, how many calls wait.
    holds: Vec<(u64, Call, Files)>,
    next_hold: u64,
    held: usize,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    inode: Inode,
    name: String,
    /// True until SQLite's unix layer has synchronised the folder, which it does with the first fsync of a journal that it may
    /// have created.
    names_too: bool,
}

/// Calls wait until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    disk: &'static Disk,
    number: u64,
}

impl Disk {
    /// Creates a healthy disk with the content of the folder.
    pub(crate) fn new(folder: &Path, seed: u64) -> &'static Self {
        static DISKS: AtomicU64 = AtomicU64::new(0);
        let number = DISKS.fetch_add(1, Ordering::Relaxed);
        let disk: &'static Self = Box::leak(Box::new(Self {
            name: Box::leak(format!("faulty-{number}").into_boxed_str()),
            state: Mutex::new(State {
                media: Media::of(folder),
                rng: Rng::new(seed),
                plans: Vec::new(),
                struck: 0,
                trace: Trace::default(),
                changes: 0,
                cut_at: u64::MAX,
                lazy_journals: false,
                holds: Vec::new(),
                next_hold: 0,
                held: 0,
            }),
            changed: Condvar::new(),
        }));
        sys::register(disk);
        disk
    }

    /// Returns the name under which SQLite knows the disk.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    // === faults ===

    pub(crate) fn plan(&self, plan: Plan) {
        self.lock().plans.push(plan);
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.lock().plans.clear();
    }

    /// Returns how many calls have failed so far.
    pub(crate) fn struck(&self) -> u64 {
        self.lock().struck
    }

    /// Lets such calls wait until the hold is dropped.
    pub(crate) fn hold(&'static self, call: Call, files: Files) -> Hold {
        let mut state = self.lock();
        let number = state.next_hold;
        state.next_hold += 1;
        state.holds.push((number, call, files));
        Hold { disk: self, number }
    }

    // === power ===

    /// Loses power at the n-th call from now that changes something.
    pub(crate) fn cut_power_after(&self, changes: u64) {
        let mut state = self.lock();
        state.cut_at = state.changes + changes;
    }

    pub(crate) fn is_off(&self) -> bool {
        self.lock().is_off()
    }

    /// From now on, fsync of a journal does nothing, as if the store had `synchronous=NORMAL`.
    pub(crate) fn make_journals_lazy(&self) {
        self.lock().lazy_journals = true;
    }

    /// Loses power, if it is still on, and writes what is left into an empty folder.
    pub(crate) fn leave(&self, into: &Path) {
        let mut state = self.lock();
        if !state.is_off() {
            state.switch_off();
        }
        let mut rng = state.rng.clone();
        state.media.leave(&mut rng, into);
        state.end(into);
    }

    /// Like [`Disk::leave`], with the worst outcome for removed files: they are back, and their journals are not. Of the pending
    /// changes of each file, those for which `reached` returns true reached the disk. It gets the index of the change and the
    /// number of changes.
    pub(crate) fn leave_without_journals(&self, into: &Path, reached: impl Fn(usize, usize) -> bool) {
        let mut state = self.lock();
        if !state.is_off() {
            state.switch_off();
        }
        state.media.leave_without_journals(into, reached);
        state.end(into);
    }

    /// Describes what happened to the write-ahead files, and which changes are not durable. Call it before [`Disk::leave`].
    pub(crate) fn describe(&self) -> String {
        let state = self.lock();
        format!("calls\n{}not durable\n{}", state.trace, state.media.describe())
    }

    // === what SQLite calls ===

    pub(super) fn open(
        &self,
        path: &Path,
        flags: c_int,
        raw: impl FnOnce() -> c_int,
    ) -> Result<Handle, c_int> {
        let name = name_of(path);
        let mut state = self.pass(Call::Open, &name, ffi::SQLITE_CANTOPEN)?;
        if state.strike(Call::Open, &name).is_some() {
            return Err(ffi::SQLITE_CANTOPEN);
        }
        ok(raw())?;
        let journals = ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_SUPER_JOURNAL;
        Ok(Handle {
            inode: state.media.open(&name),
            names_too: flags & ffi::SQLITE_OPEN_CREATE != 0 && flags & journals != 0,
            name,
        })
    }

    pub(super) fn read(&self, file: &Handle) -> Result<(), c_int> {
        let mut state = self.pass(Call::Read, &file.name, ffi::SQLITE_IOERR_READ)?;
        match state.strike(Call::Read, &file.name) {
            Some(_) => Err(ffi::SQLITE_IOERR_READ),
            None => Ok(()),
        }
    }

    pub(super) fn write(
        &self,
        file: &Handle,
        at: u64,
        bytes: &[u8],
        mut raw: impl FnMut(&[u8]) -> c_int,
    ) -> Result<(), c_int> {
        let mut state = self.pass(Call::Write, &file.name, ffi::SQLITE_IOERR_WRITE)?;
        if state.cuts_now() {
            // The write was in progress when power was lost, so parts of it may arrive.
            state.media.write(file.inode, at, bytes);
            return Err(ffi::SQLITE_IOERR_WRITE);
        }
        let (some, result) = match state.strike(Call::Write, &file.name) {
            None => (bytes, Ok(())),
            Some(Fault::Full) => return Err(ffi::SQLITE_FULL),
            Some(Fault::Short) => (&bytes[..bytes.len() / 2], Err(ffi::SQLITE_FULL)),
            Some(_) => return Err(ffi::SQLITE_IOERR_WRITE),
        };
        ok(raw(some))?;
        state.media.write(file.inode, at, some);
        result
    }

    pub(super) fn truncate(&self, file: &Handle, len: u64, raw: impl FnOnce() -> c_int) -> Result<(), c_int> {
        let mut state = self.pass(Call::Truncate, &file.name, ffi::SQLITE_IOERR_TRUNCATE)?;
        if state.cuts_now() {
            state.media.truncate(file.inode, len);
            return Err(ffi::SQLITE_IOERR_TRUNCATE);
        }
        if state.strike(Call::Truncate, &file.name).is_some() {
            return Err(ffi::SQLITE_IOERR_TRUNCATE);
        }
        ok(raw())?;
        state.media.truncate(file.inode, len);
        Ok(())
    }

    pub(super) fn sync(&self, file: &mut Handle) -> Result<(), c_int> {
        let mut state = self.pass(Call::Sync, &file.name, ffi::SQLITE_IOERR_FSYNC)?;
        if state.cuts_now() {
            return Err(ffi::SQLITE_IOERR_FSYNC);
        }
        match state.strike(Call::Sync, &file.name) {
            None if state.lazy_journals && Files::Journals.has(&file.name) => {}
            None => state.media.sync(file.inode),
            Some(fault) => {
                if matches!(fault, Fault::Lost | Fault::LostAndEvicted) {
                    state.media.lose(file.inode);
                }
                if fault == Fault::LostAndEvicted {
                    state.media.evict(file.inode);
                }
                return Err(ffi::SQLITE_IOERR_FSYNC);
            }
        }
        if std::mem::take(&mut file.names_too) {
            state.media.sync_names();
        }
        Ok(())
    }

    pub(super) fn delete(&self, path: &Path, sync_names: bool, raw: impl FnOnce() -> c_int) -> c_int {
        let name = name_of(path);
        let mut state = match self.pass(Call::Delete, &name, ffi::SQLITE_IOERR_DELETE) {
            Ok(state) => state,
            Err(code) => return code,
        };
        if state.cuts_now() || state.strike(Call::Delete, &name).is_some() {
            return ffi::SQLITE_IOERR_DELETE;
        }
        let code = raw();
        if sync_names && code == ffi::SQLITE_OK {
            state.media.sync_names();
        } else {
            state.media.notice_unlinks();
        }
        code
    }

    /// Waits while such calls are held. Fails if there is no power.
    fn pass(&self, call: Call, name: &str, code: c_int) -> Result<MutexGuard<'_, State>, c_int> {
        let mut state = self.lock();
        let of_this = |(_, held, files): &(u64, Call, Files)| *held == call && files.has(name);
        let holds = |state: &State| state.holds.iter().any(of_this);
        if holds(&state) {
            state.held += 1;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| holds(state)).unwrap();
            state.held -= 1;
        }
        if state.is_off() { Err(code) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn strike(&mut self, call: Call, name: &str) -> Option<Fault> {
        let fault = self
            .plans
            .iter_mut()
            .find_map(|plan| plan.strikes(call, name, &mut self.rng));
        self.struck += u64::from(fault.is_some());
        self.trace.note(call, name, fault);
        fault
    }

    fn is_off(&self) -> bool {
        self.changes >= self.cut_at
    }

    /// Counts a change. Returns true for the one at which power is lost.
    fn cuts_now(&mut self) -> bool {
        self.changes += 1;
        if self.is_off() {
            self.media.notice_unlinks();
        }
        self.is_off()
    }

    fn switch_off(&mut self) {
        self.media.notice_unlinks();
        self.cut_at = 0;
    }

    /// Drops what is no longer needed after a power loss, because a disk is never freed.
    fn end(&mut self, left: &Path) {
        self.media = Media::of(left);
        self.trace = Trace::default();
    }
}

impl Hold {
    /// Waits until a call is held, by this hold or another.
    pub(crate) fn wait(&self) {
        let state = self.disk.lock();
        drop(
            self.disk
                .changed
                .wait_while(state, |state| state.held == 0)
                .unwrap(),
        );
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.disk
            .lock()
            .holds
            .retain(|(number, _, _)| *number != self.number);
        self.disk.changed.notify_all();
    }
}

fn ok(code: c_int) -> Result<(), c_int> {
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(code) }
}
