//! Options of data sockets, set before they are connected or listen.

use std::os::fd::AsFd;

use linux::{SyscallError, socket};

use crate::plan::{SocketOptions, Transport};

/// What holds after options were set, as the kernel tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// `SO_SNDBUF`, bytes: twice what was asked for.
    pub send_buffer_bytes: u32,
    /// `SO_RCVBUF`, bytes: twice what was asked for.
    pub receive_buffer_bytes: u32,
    /// TCP: the maximum segment size, bytes; before the connection is made, what is assumed until then.
    pub mss_bytes: Option<u32>,
    /// TCP: the congestion control.
    pub congestion: Option<String>,
}

/// Sets the options of a socket that is not connected and does not listen yet (sizes of buffers and of segments are agreed on
/// when a connection is made). Options of another transport are left alone.
///
/// # Errors
/// The option that the kernel refused, and why.
pub fn apply(options: &SocketOptions, fd: impl AsFd, transport: Transport) -> Result<Applied, SyscallError> {
    let fd = &fd;
    set(options, fd, transport)?;
    let tcp = matches!(transport, Transport::Tcp | Transport::Mptcp);
    Ok(Applied {
        send_buffer_bytes: socket::send_buffer(fd)?,
        receive_buffer_bytes: socket::receive_buffer(fd)?,
        mss_bytes: if tcp { socket::max_segment(fd).ok() } else { None },
        congestion: if tcp { socket::congestion(fd).ok() } else { None },
    })
}

/// As [`apply`], without asking what holds then.
pub(super) fn set(options: &SocketOptions, fd: &impl AsFd, transport: Transport) -> Result<(), SyscallError> {
    if let Some(bytes) = options.send_buffer_bytes {
        socket::set_send_buffer(fd, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket::set_receive_buffer(fd, bytes)?;
    }
    if matches!(transport, Transport::Tcp | Transport::Mptcp) {
        apply_tcp(options, fd)?;
    }
    if matches!(transport, Transport::Tcp | Transport::Mptcp | Transport::Udp) {
        if let Some(class) = options.tos {
            socket::set_traffic_class(fd, class)?;
        }
        if let Some(us) = options.busy_poll_us {
            socket::set_busy_poll(fd, us)?;
        }
    }
    if let Some(priority) = options.priority {
        socket::set_priority(fd, priority)?;
    }
    Ok(())
}

fn apply_tcp(options: &SocketOptions, fd: &impl AsFd) -> Result<(), SyscallError> {
    if options.no_delay {
        socket::set_no_delay(fd, true)?;
    }
    if options.cork {
        socket::set_cork(fd, true)?;
    }
    if let Some(name) = &options.congestion {
        socket::set_congestion(fd, name)?;
    }
    if let Some(bytes) = options.mss_bytes {
        socket::set_max_segment(fd, bytes)?;
    }
    Ok(())
}
