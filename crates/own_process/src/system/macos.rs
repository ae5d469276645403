//! macOS: what its kernel answers to sysctl(3) and proc_pidinfo, and its classes of threads.
//!
//! Invariant: as the module's: what is not told is `None`.

use super::{GivesWay, ProcessMemory};
use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, size_of};
use std::ptr;

pub const NAME: &str = "Darwin";
/// A directory of the files that this process has open.
pub const OPEN_FILES: &str = "/dev/fd";

pub fn own_memory() -> Option<ProcessMemory> {
    // SAFETY: the struct is what this question is answered with.
    let told: libc::proc_taskinfo = unsafe { told_of(std::process::id(), libc::PROC_PIDTASKINFO) }?;
    Some(ProcessMemory {
        resident: told.pti_resident_size,
        anonymous: told.pti_resident_size,
        virtual_size: told.pti_virtual_size,
    })
}

pub fn machine_memory() -> Option<u64> {
    let told = told_by_name(c"hw.memsize")?;
    Some(u64::from_ne_bytes(told.try_into().ok()?))
}

pub fn processor() -> Option<String> {
    text_by_name(c"machdep.cpu.brand_string")
}

/// uname(2) says all.
pub fn kernel_version() -> Option<String> {
    None
}

pub fn release() -> Option<(String, String)> {
    Some(("macOS".into(), text_by_name(c"kern.osproductversion")?))
}

pub fn processes() -> Vec<u32> {
    // SAFETY: without a place it tells how many there are.
    let count = unsafe { libc::proc_listallpids(ptr::null_mut(), 0) };
    // Some may have begun meanwhile.
    let mut all = vec![0_u32; usize::try_from(count).unwrap_or(0) + 64];
    let Ok(bytes) = c_int::try_from(all.len() * size_of::<u32>()) else {
        return Vec::new();
    };
    // SAFETY: the place has so many bytes.
    let count = unsafe { libc::proc_listallpids(all.as_mut_ptr().cast(), bytes) };
    all.truncate(usize::try_from(count).unwrap_or(0));
    all
}

/// In microseconds of the machine's clock.
pub fn start_of(pid: u32) -> Option<u64> {
    // SAFETY: the struct is what this question is answered with.
    let told: libc::proc_bsdinfo = unsafe { told_of(pid, libc::PROC_PIDTBSDINFO) }?;
    (told.pbi_status != libc::SZOMB).then(|| {
        told.pbi_start_tvsec
            .saturating_mul(1_000_000)
            .saturating_add(told.pbi_start_tvusec)
    })
}

/// The kernel's answer: how many words, the program's path, zeros, the words, the environment.
pub fn command_line(pid: u32) -> Option<Vec<u8>> {
    let pid = c_int::try_from(pid).ok()?;
    let told = told_by_numbers(&mut [libc::CTL_KERN, libc::KERN_PROCARGS2, pid])?;
    let (count, rest) = told.split_at_checked(size_of::<c_int>())?;
    let count = usize::try_from(c_int::from_ne_bytes(count.try_into().ok()?)).ok()?;
    let path_ends = rest.iter().position(|b| *b == 0)?;
    let zeros = rest.get(path_ends..)?.iter().take_while(|b| **b == 0);
    let words = rest.get(path_ends + zeros.count()..)?;
    let mut ends = words.iter().enumerate().filter(|(_, b)| **b == 0);
    let end = match count.checked_sub(1) {
        None => 0,
        Some(last) => ends.nth(last)?.0 + 1,
    };
    words.get(..end).map(<[u8]>::to_vec)
}

pub fn running_threads() -> Option<usize> {
    None
}

pub fn give_way(far: GivesWay) {
    let class = match far {
        GivesWay::Little => libc::qos_class_t::QOS_CLASS_UTILITY,
        GivesWay::Much => libc::qos_class_t::QOS_CLASS_BACKGROUND,
    };
    // SAFETY: takes numbers alone, and changes the calling thread alone.
    unsafe { libc::pthread_set_qos_class_self_np(class, 0) };
}

/// A struct that the kernel fills for a process.
///
/// # Safety
/// `T` is the struct of this question, and made of numbers alone.
unsafe fn told_of<T>(pid: u32, question: c_int) -> Option<T> {
    let pid = c_int::try_from(pid).ok()?;
    let bytes = c_int::try_from(size_of::<T>()).ok()?;
    let mut told = MaybeUninit::<T>::zeroed();
    // SAFETY: the place has so many bytes.
    let came = unsafe { libc::proc_pidinfo(pid, question, 0, told.as_mut_ptr().cast(), bytes) };
    // SAFETY: zeros and what the call wrote are valid for numbers.
    (came == bytes).then(|| unsafe { told.assume_init() })
}

fn text_by_name(name: &CStr) -> Option<String> {
    let told = told_by_name(name)?;
    let text = CStr::from_bytes_until_nul(&told).ok()?;
    Some(text.to_string_lossy().into_owned())
}

fn told_by_name(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the name ends with a zero; the place has so many bytes, or is none.
    told_by(|place, bytes| unsafe {
        libc::sysctlbyname(name.as_ptr(), place, bytes, ptr::null_mut(), 0)
    })
}

fn told_by_numbers(numbers: &mut [c_int]) -> Option<Vec<u8>> {
    let count = u32::try_from(numbers.len()).ok()?;
    // SAFETY: there are so many numbers; the place has so many bytes, or is none.
    told_by(|place, bytes| unsafe {
        libc::sysctl(
            numbers.as_mut_ptr(),
            count,
            place,
            bytes,
            ptr::null_mut(),
            0,
        )
    })
}

/// Asks how long an answer is, and for the answer. `ask` gives 0 where it was answered.
fn told_by(mut ask: impl FnMut(*mut c_void, &mut usize) -> c_int) -> Option<Vec<u8>> {
    let mut bytes = 0;
    (ask(ptr::null_mut(), &mut bytes) == 0).then_some(())?;
    let mut told = vec![0_u8; bytes];
    (ask(told.as_mut_ptr().cast(), &mut bytes) == 0).then_some(())?;
    told.truncate(bytes);
    Some(told)
}
