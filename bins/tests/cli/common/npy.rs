//! Arrays in files, byte for byte.

/// A `.npy` file of this type and shape.
pub fn npy(descr: &str, shape: &str, data: Vec<u8>) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', 117 - header.len()));
    header.push('\n');
    [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &data].concat()
}
