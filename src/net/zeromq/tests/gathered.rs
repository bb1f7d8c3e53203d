//! Turns that receive before any of them is handled.

use super::*;

/// So many clients, each with its handshake behind it and a message of its own number on its way. The server has been
/// given all of these ahead, and has received none.
fn clients_with_a_message_each(echo: &mut Echo, count: u8) -> Vec<TcpStream> {
    let mut clients: Vec<TcpStream> = (0..count).map(|_| echo.connect()).collect();
    for client in &mut clients {
        client.write_all(&introduction(SocketType::Dealer)).unwrap();
    }
    while echo.connections.open_count() < clients.len() {
        echo.pass();
    }
    clients.iter_mut().for_each(introduced);
    for (number, client) in (0..).zip(&mut clients) {
        client.write_all(&message(&[&[number]])).unwrap();
    }
    let now = echo.now;
    while echo.connections.turns_noted() < clients.len() {
        echo.connections.wait(PATIENCE, || now);
    }
    clients
}

fn gather(echo: &mut Echo) -> bool {
    let now = echo.now;
    echo.connections.gather(4, || now)
}

/// The frames of the messages of each turn that was gathered.
fn gathered(echo: &Echo) -> Vec<Vec<Vec<u8>>> {
    let messages = echo.connections.gathered();
    messages
        .map(|(_, messages)| messages.iter().map(|message| message.frames().flatten().copied().collect()))
        .map(Iterator::collect)
        .collect()
}

#[test]
fn what_was_received_ahead_is_handled_once_and_in_its_order() {
    let mut echo = Echo::start();
    let mut clients = clients_with_a_message_each(&mut echo, 3);
    assert!(gather(&mut echo));
    let ahead = gathered(&echo);
    assert_eq!(ahead.len(), 3);
    assert!(!gather(&mut echo), "what was gathered comes first");
    echo.turns();
    let (received, gathered): (Vec<_>, Vec<_>) = (echo.received.clone(), ahead.into_iter().flatten().collect());
    assert_eq!(received.len(), 3);
    let of_clients: Vec<Vec<u8>> = received.iter().map(|id| vec![u8::try_from(id.slot()).unwrap()]).collect();
    assert_eq!(of_clients, gathered, "clients have their slots in the order of connecting");
    for (number, client) in (0..).zip(&mut clients) {
        expect(client, &message(&[&[number]]));
    }
}

#[test]
fn a_turn_of_several_messages_is_the_last_that_is_gathered() {
    let mut echo = Echo::start();
    let mut clients = clients_with_a_message_each(&mut echo, 4);
    let second: Vec<u8> = [10, 11].iter().flat_map(|number| message(&[&[*number]])).collect();
    clients.iter_mut().for_each(|client| client.write_all(&second).unwrap());
    assert!(!gather(&mut echo), "the first has three messages, so nobody waits for the second");
    assert_eq!(gathered(&echo).iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    echo.receive(12);
    for (number, client) in (0..).zip(&mut clients) {
        expect(client, &[message(&[&[number]]), second.clone()].concat());
    }
}

#[test]
fn as_many_are_gathered_as_are_fetched_together() {
    let mut echo = Echo::start();
    let _clients = clients_with_a_message_each(&mut echo, 20);
    assert!(gather(&mut echo));
    assert_eq!(gathered(&echo).len(), crate::limits::LOOK_AHEAD);
    echo.receive(20);
    assert_eq!(echo.received.len(), 20);
}

#[test]
fn a_single_client_waits_for_nobody() {
    let mut echo = Echo::start();
    let _clients = clients_with_a_message_each(&mut echo, 1);
    assert!(!gather(&mut echo));
    assert!(gathered(&echo).is_empty());
    echo.turns();
    assert_eq!(echo.received.len(), 1);
}

#[test]
fn what_was_gathered_is_not_lost_over_a_wait_and_ends_it() {
    let mut echo = Echo::start();
    let mut clients = clients_with_a_message_each(&mut echo, 3);
    assert!(gather(&mut echo) && echo.connections.has_backlog());
    // The wait has no end of its own.
    let now = echo.now;
    echo.connections.wait(None, || now);
    echo.turns();
    assert_eq!(echo.received.len(), 3);
    for (number, client) in (0..).zip(&mut clients) {
        expect(client, &message(&[&[number]]));
    }
}

#[test]
fn what_was_gathered_of_a_connection_that_ends_meanwhile_is_not_handled() {
    let mut echo = Echo::start();
    let _clients = clients_with_a_message_each(&mut echo, 3);
    assert!(gather(&mut echo));
    echo.connections.disconnect_all();
    echo.turns();
    assert!(echo.received.is_empty());
}

#[test]
fn memory_is_looked_at_between_gathered_turns() {
    let mut echo = Echo::start_within(&Budget::new(1 << 20));
    let _clients = clients_with_a_message_each(&mut echo, 3);
    assert!(gather(&mut echo));
    let mut were_tight = Vec::new();
    let mut answer = |_, _: &mut u32, outbox: &mut super::super::ReplyBuffer, _: crate::zmtp::MessageView<'_>| {
        were_tight.push(outbox.is_tight());
        outbox.push(&vec![7; 8 << 20], false);
        TurnOutcome::All
    };
    while echo.connections.receive(4, &mut answer).is_some() {}
    assert_eq!(were_tight, [false, true, true]);
}

#[test]
fn requests_have_arrived_when_they_were_gathered_however_long_those_before_them_take() {
    let mut echo = Echo::start();
    let _clients = clients_with_a_message_each(&mut echo, 3);
    let (gathered_at, answered_at) = (Now::from_millis(5), Now::from_millis(900));
    assert!(echo.connections.gather(4, || gathered_at));
    let mut arrivals = Vec::new();
    let mut answer = |_, _: &mut u32, outbox: &mut super::super::ReplyBuffer, _: crate::zmtp::MessageView<'_>| {
        arrivals.push(outbox.arrived(answered_at));
        TurnOutcome::All
    };
    while echo.connections.receive(4, &mut answer).is_some() {}
    assert_eq!(arrivals, [gathered_at; 3]);
}

#[test]
fn nobody_waits_for_a_handshake_or_a_large_message() {
    for sent in [introduction(SocketType::Dealer), vec![0xff; 10]] {
        let mut echo = Echo::start();
        let mut late = echo.connect();
        while echo.connections.is_empty() {
            echo.pass();
        }
        late.write_all(&sent[..5]).unwrap();
        let _clients = clients_with_a_message_each(&mut echo, 2);
        late.write_all(&sent[5..]).unwrap();
        let now = echo.now;
        while echo.connections.turns_noted() < 3 {
            echo.connections.wait(PATIENCE, || now);
        }
        gather(&mut echo);
        let begun = gathered(&echo).len();
        assert!(begun <= 2 && echo.connections.turns_noted() == 3 - begun, "the handshake keeps its turn");
    }
    let mut echo = Echo::start();
    let mut clients = clients_with_a_message_each(&mut echo, 2);
    for client in &mut clients {
        client.write_all(&message(&[&[7; 40_000]])[..20_000]).unwrap();
    }
    let now = echo.now;
    echo.connections.wait(PATIENCE, || now);
    assert!(!gather(&mut echo));
    assert_eq!(gathered(&echo).len(), 1, "the beginning of a large message came behind the first one");
}
