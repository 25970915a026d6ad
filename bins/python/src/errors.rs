//! Work without the interpreter's lock, and its failures as Python's exceptions.
use candle::Error;
use chandlery_ops::core::keep_current;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long work may run before it looks for Ctrl-C again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Python as work without its lock sees it: signals, callbacks, and the first exception of either.
pub struct Interpreter {
    exception: Mutex<Option<PyErr>>,
    looked: Mutex<Instant>,
}

impl Interpreter {
    /// Fails when a signal, such as Ctrl-C, has arrived. Looks every 50 ms.
    pub fn check(&self) -> candle::Result<()> {
        let due = self.looked.lock().is_ok_and(|mut looked| {
            let due = looked.elapsed() >= BETWEEN_LOOKS;
            if due {
                *looked = Instant::now();
            }
            due
        });
        if due { self.call(|py| py.check_signals()) } else { Ok(()) }
    }

    /// Runs `call` with the lock; its exception becomes that of the whole work.
    pub fn call<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> candle::Result<T> {
        Python::attach(call).map_err(|exception| {
            let error = Error::Msg(exception.to_string());
            if let Ok(mut first) = self.exception.lock() {
                first.get_or_insert(exception);
            }
            error
        })
    }
}

/// The result of `work`, which runs without the interpreter's lock.
///
/// # Errors
/// The exception of a signal or callback, and what [`exception`] makes of an error. A panic becomes
/// a `RuntimeError`.
pub fn run<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Interpreter) -> candle::Result<T> + Send,
) -> PyResult<T> {
    let python = Interpreter { exception: Mutex::new(None), looked: Mutex::new(Instant::now()) };
    let result = py.detach(|| caught(|| keep_current(|| work(&python))));
    match python.exception.into_inner().ok().flatten() {
        Some(exception) => Err(exception),
        None => result,
    }
}

/// What is said of a checkpoint of another training.
pub fn of_another(path: &std::path::Path) -> String {
    format!(
        "checkpoint: {} must be of these rows and parameters, and is of others; remove it, or give another folder",
        path.display()
    )
}

/// Says in a warning that a checkpoint could not be written, where an exception is on its way
/// already.
pub fn warned(python: &Interpreter, saved: candle::Result<()>) {
    let Err(error) = saved else { return };
    let text = format!("checkpoint: it was not written: {}", first_lines(&error));
    let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
    // That the warning became an exception changes nothing: the first one counts.
    let _ = python.call(|py| PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1));
}

/// The result of `work`; a panic becomes a `RuntimeError`.
pub fn caught<T>(work: impl FnOnce() -> candle::Result<T>) -> PyResult<T> {
    let result = catch_unwind(AssertUnwindSafe(work));
    result.map_err(|panic| panicked(&*panic))?.map_err(|error| exception(&error))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    PyRuntimeError::new_err(format!("chandlery: this is a fault of the library, please report it: {text}"))
}

/// The exception of an error of the library: `OSError` for files, `MemoryError` where memory is
/// short, `RuntimeError` for a device, else `ValueError`.
pub fn exception(error: &Error) -> PyErr {
    let text = first_lines(error);
    match innermost(error) {
        Error::Io(_) => PyOSError::new_err(text),
        Error::Cuda(_) | Error::NotCompiledWithCudaSupport => PyRuntimeError::new_err(text),
        _ if text.contains(" of memory") => PyMemoryError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// The error without what surrounds it.
fn innermost(error: &Error) -> &Error {
    match error {
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            innermost(inner)
        }
        other => other,
    }
}

/// The text of an error without its backtrace.
fn first_lines(error: &Error) -> String {
    match error {
        Error::WithBacktrace { inner, .. } => first_lines(inner),
        Error::Context { inner, context } => format!("{context}: {}", first_lines(inner)),
        other => other.to_string(),
    }
}

/// An exception as `OSError`: of a file that is not there or cannot be written.
pub fn of_files(py: Python<'_>, exception: &PyErr) -> PyErr {
    PyOSError::new_err(exception.value(py).to_string())
}
