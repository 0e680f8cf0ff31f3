//! Redis as it really is: killed, frozen, emptied, failed over, moved.

mod servers;
