//! Dictionary learning: atoms such that each signal is a combination of few of them.
pub mod pursuit;
