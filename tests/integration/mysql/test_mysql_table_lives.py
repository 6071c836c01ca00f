"""Whatever happens to a table of MariaDB: what the log tells of it is the table, or the table is doubted, and no other table is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.paths.table_lives import Follower, Told
from testing.servers.databases.mysql_lab import BINLOG, connect, restarted, run
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration
DATABASES = ("lat", "ral")


@pytest.fixture(scope="module", params=["FULL", "NO_LOG"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    options = (*BINLOG, f"--binlog-row-metadata={request.param}", "--character-set-server=utf8mb4")
    with mariadb(tmp_path_factory.mktemp("mariadb"), options) as uri:
        yield uri, request.param


Case = tuple[str, str, str]
"""Before capture begins; while it is captured; the tables that are doubted, with a ! only without full metadata."""
CASES: dict[str, Case] = {
    "a_name_used_three_times": (
        "",
        "create table t1(a int primary key, b int); insert into t1 values(1,1),(2,2); rename table t1 to t1_old;"
        "create table t1(a int primary key); insert into t1 values(1),(2); rename table t1 to t1_old2;"
        "create table t1(a int primary key);"
        "insert into t1 values(5)",
        "",
    ),
    "swapped_names": (
        "create table a1(id int primary key, v int); insert into a1 values(1,1); create table a2(id int primary key, w int)",
        "insert into a1 values(2,2); insert into a2 values(7,7); rename table a1 to tmp, a2 to a1, tmp to a2;"
        "insert into a1 values(8,8); insert into a2 values(3,3)",
        "",
    ),
    "reload_and_swap": (
        "create table s(id int primary key, v int)",
        "insert into s values(1,1); create table s_new(id int primary key, v int); insert into s_new values(1,2),(2,2); drop table s;"
        "rename table s_new to s; insert into s values(3,3)",
        "",
    ),
    "created_replaced_truncated": (
        "create table r(id int primary key, v int)",
        "insert into r values(1,1); create or replace table r(id int primary key, w varchar(9)); insert into r values(1,'x');"
        "truncate table r; insert into r values(2,'y'); drop table r; create table r(id int primary key); insert into r values(9)",
        "",
    ),
    "across_databases": (
        "create table ra(id int primary key, v int)",
        "insert into ra values(1,1); rename table ra to ral.moved; insert into ral.moved values(2,2);"
        "create table ra(id int primary key);"
        "insert into ra values(3); rename table ral.moved to back",
        "",
    ),
    "added_with_constants": (
        "create table c(id int primary key)",
        "set sql_mode=''; insert into c values(1); alter table c add column a int not null default 5; insert into c values(2,7);"
        "alter table c alter column a drop default; alter table c add column b int default 5; alter table c alter column b set default 9;"
        "insert into c(id,a) values(3,1); alter table c add column d varchar(9) not null, add column e enum('x','y') not null,"
        " add column f decimal(9,2) default 1.5, add column g bit(3) default b'101', add column h date not null;"
        "insert into c(id,a) values(4,4)",
        "",
    ),
    "first_in_lower_case": (
        "create table d1(id int primary key)",
        "insert into d1 values(1); alter table d1 add column f tinyint default 7 first; insert into d1 values(8,2);"
        "alter table d1 modify id bigint first; insert into d1 values(3,3)",
        "",
    ),
    "dropped_and_added_again": (
        "create table da(id int primary key, v int)",
        "insert into da values(1,1); alter table da drop column v; alter table da add column v int default 3; insert into da values(2,2);"
        "alter table da drop column v, add column v int default 4; insert into da values(3,3)",
        "",
    ),
    "swapped_columns": (
        "create table sc(id int primary key, a int, b int)",
        "insert into sc values(1,10,20); alter table sc rename column a to b, rename column b to a; insert into sc values(2,30,40);"
        "alter table sc change a b int, change b a int; insert into sc values(3,5,6)",
        "",
    ),
    "computed_defaults": (
        "create table cd(id int primary key, a int); create table ce(id int primary key); create table cf(id int primary key)",
        "insert into cd values(1,1); insert into ce values(1); insert into cf values(1);"
        "alter table cd add column t datetime(6) default current_timestamp(6); alter table ce add column u int default (2+id);"
        "alter table cf add column w varchar(40) default uuid(); insert into cd(id) values(2)",
        "cd ce cf",
    ),
    "numbered_keyless": (
        "create table kl(v int)",
        "insert into kl values(1),(2); alter table kl add column id bigint unsigned invisible not null auto_increment primary key;"
        "insert into kl(v) values(3)",
        "kl",
    ),
    "rewrites": (
        "create table na(id int primary key, v varchar(20)); create table ig(id int primary key, v int);"
        "create table sg(id int primary key, v int);"
        "create table en(id int primary key, v enum('a','b')); create table cc(id int primary key, v varchar(9) character set latin1);"
        "create table nn(id int primary key, v int); create table ok(id int primary key, v varchar(9))",
        "insert into na values(1,'abcdef'); insert into ig values(1,1),(2,1); insert into sg values(1,1); insert into en values(1,'b');"
        "insert into cc values(1,'äö'); insert into nn values(1,null); insert into ok values(1,'x'); set sql_mode='';"
        "alter table na modify v varchar(4); alter ignore table ig add unique(v); alter table sg modify v int unsigned;"
        "alter table en modify v enum('b','a'); alter table cc convert to character set utf8mb4; alter table nn modify v int not null;"
        "alter table ok modify v varchar(50); alter table ok add index(v); alter table ok comment 'x'; alter table ok engine=innodb;"
        "insert into ok values(2,'y'); set sql_mode=default",
        "na ig sg en cc nn",
    ),
    "charsets_of_their_time": (
        "create table mj(id int primary key, v varchar(20) character set koi8r);"
        "create table lu(id int primary key, v text) character set latin1",
        "insert into mj values(1,'привет'); alter table mj modify v varchar(20) character set cp1251; insert into mj values(2,'мир');"
        "insert into lu values(1,'äö'); alter table lu convert to character set utf8mb4; insert into lu values(2,'я')",
        "mj lu",
    ),
    "partitions": (
        "create table pt(id int primary key) partition by range(id) (partition p0 values less than(100),"
        " partition p1 values less than(200));"
        "create table px(id int primary key); create table pk(id int primary key) partition by key(id) partitions 4",
        "insert into pt values(1),(2),(150); insert into px values(3),(99); insert into pk values(1),(2),(3);"
        "alter table pt exchange partition p0 with table px; alter table pt drop partition p0; insert into pt values(160);"
        "insert into pk values(4)",
        "pt px",
    ),
    "truncated_partition": (
        "create table tp(id int primary key) partition by range(id) (partition p0 values less than(100),"
        " partition p1 values less than(200))",
        "insert into tp values(1),(150); alter table tp truncate partition p0;"
        "alter table tp add partition (partition p2 values less than(300));"
        "insert into tp values(250)",
        "tp",
    ),
    "added_partition": (
        "create table ap(id int primary key) partition by range(id) (partition p0 values less than(100))",
        "insert into ap values(1); alter table ap add partition (partition p2 values less than(300)); insert into ap values(250);"
        "alter table ap remove partitioning; insert into ap values(999)",
        "",
    ),
    "system_versions": (
        "create table sv(id int primary key, v int) with system versioning",
        "insert into sv values(1,1),(2,2),(3,3); update sv set v=v+10 where id<3; delete from sv where id=1; insert into sv values(1,7);"
        "create table sw(id int primary key, v int, s timestamp(6) generated always as row start,"
        " e timestamp(6) generated always as row end,"
        " period for system_time(s,e)) with system versioning; insert into sw(id,v) values(1,1),(2,2); delete from sw where id=1",
        "",
    ),
    "generated_then_altered": (
        "",
        "create table ge(id int primary key, g int as (id*2) persistent); insert into ge(id) values(1);"
        "alter table ge add column x int default 3;"
        "insert into ge(id,x) values(2,2); create table pq(id int primary key, v int) partition by key(id) partitions 3;"
        "insert into pq values(1,1); alter table pq add column w int; insert into pq values(2,2,2)",
        "",
    ),
    "quotes_and_backslashes": (
        "create table bs(id int primary key)",
        "insert into bs values(1); set sql_mode='NO_BACKSLASH_ESCAPES'; alter table bs add column v varchar(9) default '\\';"
        "insert into bs(id) values(2); set sql_mode='ANSI_QUOTES'; alter table bs add column \"w x\" int default 4;"
        'create table "q q"("a b" int primary key); insert into "q q" values(1); set sql_mode=default; insert into bs(id) values(3)',
        "",
    ),
    "changes_as_text": (
        "create table sd(id int primary key, v int); create table so(id int primary key); insert into sd values(1,1)",
        "insert into so values(1); set binlog_format='STATEMENT'; set statement max_statement_time=100 for insert into sd values(50,1);"
        "set binlog_format='ROW'; insert into so values(2); insert into sd values(3,3)",
        "sd",
    ),
    "made_by_a_query": (
        "create table sq(id int primary key, v int); insert into sq values(1,1)",
        "set binlog_format='STATEMENT'; create table sr(primary key(id)) select * from sq; set binlog_format='ROW';"
        "create table st(primary key(id)) select * from sq; insert into st values(2,2)",
        "sr",
    ),
    "odd_statements": (
        "create table os(id int primary key, v int); create table ot(id int, v int, unique key(id))",
        "insert into os values(1,1); analyze table os; optimize table os; create view ov as select * from os; drop view ov;"
        "create trigger og before insert on os for each row set new.v = new.v + 1; insert into os values(2,2); drop trigger og;"
        "create sequence oq; select nextval(oq); drop sequence oq; create temporary table oz(id int); insert into oz values(1);"
        "drop temporary table oz; create user u1; grant select on lat.* to u1; drop user u1; flush tables; savepoint x;"
        "alter table os auto_increment=100, comment='x', row_format=dynamic; alter table os rename index if exists a to b;"
        "create index oi on os(v); drop index oi on os; begin; insert into os values(3,3); savepoint s; insert into os values(4,4);"
        "rollback to s; commit; create table os_like like os; insert into os_like values(1,1); lock tables os write; unlock tables;"
        "set foreign_key_checks=0;"
        "alter table os add check (v > 0), add constraint fk foreign key (v) references os_like(id) on delete cascade;"
        "alter table os alter v set default 3, disable keys; alter table os enable keys; alter table os force;"
        "alter table os drop foreign key fk; alter table os add column if not exists v int; alter table os drop column if exists nope;"
        "replace into os values(1,5); insert into os values(1,1) on duplicate key update v=77; delete from os where id=2",
        "",
    ),
    "gh_ost": (
        "create table g(id int primary key, v int); insert into g values(1,1),(2,2)",
        "create table _g_gho like g; alter table _g_gho add column w int not null default 0; insert into _g_gho(id,v) select id,v from g;"
        "update g set v=3 where id=1; update _g_gho set v=3 where id=1; rename table g to _g_del, _g_gho to g; drop table _g_del;"
        "insert into g values(9,9,9)",
        "",
    ),
    "dropped_database": (
        "create database gone; create table gone.t(id int primary key)",
        "insert into gone.t values(1); drop database gone; create database gone; create table gone.t(id int primary key, v int);"
        "insert into gone.t values(1,1); drop database gone",
        "",
    ),
    "keys_that_change": (
        "create table kc(id int primary key, v int not null); create table ku(a int not null, b int not null, unique(a))",
        "insert into kc values(1,1); insert into ku values(1,2); alter table kc drop primary key, add primary key(v);"
        "insert into kc values(2,2);"
        "insert into ku values(3,4)",
        "kc",
    ),
    "no_table_stops_another": (
        "create table nt(id int primary key, v varchar(9) character set dec8); create table ns(id int primary key)",
        "insert into nt values(1,'x'); insert into ns values(1); insert into nt values(2,'ä'); insert into ns values(2)",
        "nt",
    ),
    "charset_by_default": (
        "create table cm(id int primary key, v varchar(20) character set koi8r) character set latin1; insert into cm values(1,'привет')",
        "set sql_mode=''; insert into cm values(2,'мир'); alter table cm modify v varchar(30); insert into cm values(3,'x')",
        "cm",
    ),
    "several_at_once": (
        "create table sa(id int primary key, v int)",
        "insert into sa values(1,1);"
        "alter table sa add column x int default 3, add column y varchar(5) default 'q' after id, drop column v,"
        " disable keys; insert into sa(id) values(2); alter table sa add (p int default 3, q int not null default 1);"
        "insert into sa(id) values(3)",
        "",
    ),
    "renamed_by_alter": (
        "create table rb(id int primary key, v int)",
        "insert into rb values(1,1); alter table rb rename to rc; alter table rc rename rb, add column z int;insert into rb values(2,2,2)",
        "",
    ),
    "copied_and_replaced": (
        "create table ca(id int primary key, v int)",
        "insert into ca values(1,1); create table cb select * from ca; create table cl like ca; insert into cl select * from ca;"
        "create table if not exists ca(id int); create or replace table cb(x int primary key); insert into cb values(9)",
        "",
    ),
    "odd_names": (
        "create table `we ird``t`(`i d` int primary key, `sel``ect` int)",
        "insert into `we ird``t` values(1,1);"
        "alter table `we ird``t` change `sel``ect` `from` bigint, add column `add` int default 4 after `i d`;"
        "insert into `we ird``t` values(2,2,2); rename table `we ird``t` to `select`; insert into `select` values(3,3,3)",
        "",
    ),
    "types_of_mariadb": (
        "create table tm(id int primary key, p point)",
        "insert into tm values(1,point(1,2));"
        "alter table tm add column v varchar(20) character set latin1 default 'é', add column j json,"
        " add column u uuid, add column i inet6, add column b blob, add column t timestamp null;"
        "insert into tm(id,v,u,i) values(2,'ü',uuid(),'::1'); create table tn like tm; insert into tn select * from tm",
        "",
    ),
    "numbers_and_elements": (
        "create table ne(id int primary key, e enum('x','y')); create table nu(id int primary key auto_increment)",
        "insert into ne values(1,'y'); alter table ne modify e enum('x','y','z'); insert into ne values(2,'z');"
        "alter table ne add column f enum('q','r') not null default 'r', add column q bigint unsigned default 18446744073709551615;"
        "alter table ne alter column q set default 5, algorithm=inplace, lock=none; insert into ne(id) values(3);"
        "insert into nu values(1); alter table nu modify id bigint auto_increment",
        "nu",
    ),
    "generated_columns": (
        "create table gc(id int primary key, v int as (id+1) virtual, s int as (id+2) stored, i int invisible default 4)",
        "insert into gc(id) values(1); update gc set id=2; alter table gc add column q int default 1 first; insert into gc(id) values(7);"
        "flush binary logs; alter table gc add column r int invisible default 5; insert into gc(id) values(8)",
        "",
    ),
    "converted_partitions": (
        "create table cp(id int primary key) partition by range(id) (partition p0 values less than (10),"
        " partition p1 values less than (20))",
        "insert into cp values(1),(11); alter table cp reorganize partition p0 into (partition q0 values less than(5),"
        " partition q1 values less than(10)); alter table cp convert partition p1 to table cx; insert into cx values(12);"
        "insert into cp values(2)",
        "cp cx",
    ),
    "altered_in_two_phases": (
        "create table ta(id int primary key, v int); insert into ta values(1,1)",
        "set binlog_alter_two_phase=1; alter table ta add column c int default 5; insert into ta values(2,2,2);"
        "alter table ta drop column v, add column v varchar(9) default 'x'; alter table ta add column d int, rename to tb;"
        "insert into tb values(3,3,'3',3)",
        "",
    ),
    "history_made_and_removed": (
        "create table hm(id int primary key, v int)",
        "insert into hm values(1,1); alter table hm add system versioning; update hm set v=2; alter table hm drop system versioning;"
        "insert into hm values(2,2)",
        "hm",
    ),
}


def statements(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def prepared(uri: str, before: str) -> object:
    writer = connect(uri)
    for database in DATABASES:
        run(writer, f"drop database if exists {database}", f"create database {database}")
    run(writer, "use lat", *statements(before))
    return writer


def expected_doubts(text: str, metadata: str) -> set[str]:
    return {name.strip("!") for name in text.split() if not name.endswith("!") or metadata != "FULL"}


@pytest.mark.parametrize("mode", ["live", "behind", "restarts"])
@pytest.mark.parametrize("case", CASES)
def test_tables_are_followed_or_doubted(server: tuple[str, str], case: str, mode: str) -> None:
    uri, metadata = server
    before, text, doubted = CASES[case]
    writer, told = prepared(uri, before), Told()
    follower = Follower(uri, told)
    told.snapshot(follower.upstream)
    if mode == "live":
        follower.begin()
    parts = [statements(text)] if mode != "restarts" else [statements(text)[n : n + 4] for n in range(0, len(statements(text)), 4)]
    for part in parts:
        run(writer, *part)
        if mode == "restarts":
            follower.begin()
            follower.settle()
            follower.close()
            follower = Follower(uri, told, told.position)
    if mode != "live":
        follower.begin()
    follower.settle()
    try:
        assert told.doubted == expected_doubts(doubted, metadata)
        follower.check(DATABASES)
    finally:
        follower.close()


def test_a_doubt_stands_where_the_log_stops_telling(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    with mariadb(directory, BINLOG) as uri:
        writer, told = prepared(uri, "create table a(id int primary key, v int); create table b(id int primary key)"), Told()
        run(writer, "create table m(id int primary key) engine=memory", "insert into m values(1)")
        (directory / "rows.txt").write_text("7\t7\n")
        (directory / "rows.txt").chmod(0o644)
        other = connect(uri)
        run(other, "xa start 'early'", "insert into lat.b values(99)", "xa end 'early'", "xa prepare 'early'")
        follower = Follower(uri, told)
        told.snapshot(follower.upstream)
        follower.begin()
        told.rows_ts.clear()
        odd = [
            "alter table a modify v int not null",
            "set statement binlog_format='STATEMENT' for update a set v = v + 1",
            f"set statement binlog_format='STATEMENT' for load data infile '{directory / 'rows.txt'}' into table a",
            "set statement binlog_format='STATEMENT' for delete from a where id = 7",
        ]
        for number, text in enumerate(odd):
            run(writer, f"insert into b values({number})", text)
        run(writer, "insert into b values(50)")
        follower.settle()
        times = [ts for ts, _, _ in told.rows_ts]
        assert len(times) == len(odd) + 1
        doubts = [d for d in told.doubts if d.table == "a"]
        assert [(d.code, t < d.ts < u) for d, t, u in zip(doubts, times, times[1:], strict=False)] == [
            ("", True),
            ("UPSTREAM_MISCONFIGURED", True),
            ("UPSTREAM_MISCONFIGURED", True),
            ("UPSTREAM_MISCONFIGURED", True),
        ]
        assert all(d.hint for d in doubts[1:])
        assert told.doubted == {"a"}
        # What was prepared before anyone read the log is in no row that was seen: which tables it changed is not told.
        run(other, "xa commit 'early'")
        follower.settle()
        assert told.doubted == {"a", "b", "m"}
        told.doubts.clear()
        follower.close()
        with restarted(directory, uri):
            follower = Follower(uri, told, told.position).begin()
            run(connect(uri), "select * from lat.m", "insert into lat.b values(51)")
            follower.settle()
            # The server notes that its rows went with it, as a DELETE or a TRUNCATE.
            live = {t.table: t.table_id for t in follower.upstream.list_tables()}
            assert told.doubted <= {"m"}
            assert "m" in told.doubted or told.rows.get(live["m"], {}) == {}
            follower.close()


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_an_xa_transaction_that_is_too_large_to_be_held_doubts_its_tables(server: tuple[str, str], decision: str) -> None:
    uri, _ = server
    writer, told = prepared(uri, "create table big(id int primary key, v varchar(200)); create table small(id int primary key)"), Told()
    follower = Follower(uri, told, piece_bytes=1_000_000).begin()
    fill = "insert into lat.big select seq, repeat('x', 190) from seq_1_to_60000"
    run(writer, "insert into small values(1)", "xa start 'wide'", fill, "xa end 'wide'", "xa prepare 'wide'", f"xa {decision} 'wide'")
    run(writer, "insert into small values(2)")
    follower.settle()
    assert told.doubted == {"big"}
    assert len({d.ts for d in told.doubts}) == 2, "where it is prepared and where it is decided"
    assert follower.check(DATABASES) == {"small": 2}
    follower.close()
