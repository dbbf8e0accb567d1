//! Requests and their replies, through cuts and what is no broker at all.

use std::time::Duration;

use tidegate::{Client, ErrorCode, ErrorKind, OffsetQuery, PartitionId, TopicSpec};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::fake::Fake;

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_its_form() {
    for address in ["", "localhost", ":7171", "localhost:", "localhost:seven", "localhost:70000"] {
        let error = Client::connect(address).await.expect_err(address);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{address}");
        assert!(error.hint().contains("host:port"));
    }
}

#[tokio::test]
async fn nobody_listening_is_told_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(&address).await.expect_err("nobody there");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.is_retriable() && error.cause().contains(&address));
}

#[tokio::test]
async fn something_that_is_no_broker_is_told_as_that() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    let error = Client::connect(&address).await.expect_err("no broker");
    assert_eq!(error.kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up() {
    let fake = Fake::start().await;
    fake.change(|broker| broker.faults.silent = true);
    let builder = Client::builder().connect_timeout(Duration::from_millis(50));
    let error = builder.connect(&fake.address).await.expect_err("silent");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.cause().contains("50 ms"), "{error}");
}

#[tokio::test]
async fn requests_survive_cut_connections() {
    let fake = Fake::start().await;
    let admin = Client::connect(&fake.address).await.unwrap().admin();
    for number in 0..5 {
        admin.create_topic(TopicSpec::new(&format!("topic {number}")).partitions(2)).await.unwrap();
        fake.cut();
        assert_eq!(admin.list_topics().await.unwrap().len(), number + 1);
    }
}

#[tokio::test]
async fn many_requests_at_a_time_get_their_own_replies() {
    let fake = Fake::with_topic(8).await;
    let admin = Client::connect(&fake.address).await.unwrap().admin();
    let asking = (0..64).map(|number| {
        let admin = admin.clone();
        tokio::spawn(
            async move { admin.list_offset("t", PartitionId(number % 8), OffsetQuery::Latest).await },
        )
    });
    for asked in asking.collect::<Vec<_>>() {
        assert_eq!(asked.await.unwrap().unwrap().offset.0, 0);
    }
}

#[tokio::test]
async fn refusals_come_with_code_and_hint() {
    let fake = Fake::with_topic(1).await;
    let admin = Client::connect(&fake.address).await.unwrap().admin();
    let error = admin.create_topic(TopicSpec::new("t")).await.expect_err("exists");
    assert_eq!(error.code(), Some(ErrorCode::TopicExists));
    assert!(error.to_string().contains("choose another name"));
    let error = admin.list_offset("t", PartitionId(1), OffsetQuery::Latest).await.expect_err("one partition");
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
    let error = admin.list_offsets("u", OffsetQuery::Latest).await.expect_err("no such topic");
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));
    let error = admin.status().await.expect_err("this broker has none");
    assert_eq!(error.code(), Some(ErrorCode::UnsupportedVersion));
}

#[tokio::test]
async fn topics_that_do_not_fit_one_reply_come_in_several() {
    let fake = Fake::start().await;
    fake.change(|broker| {
        broker.topics_per_reply = 2;
        for name in ["d", "a", "e", "c", "b"] {
            broker.create(name, 1);
        }
    });
    let client = Client::connect(&fake.address).await.unwrap();
    let topics = client.admin().list_topics().await.unwrap();
    let names: Vec<_> = topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}
