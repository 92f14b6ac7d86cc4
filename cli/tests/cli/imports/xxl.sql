-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
/*!40101 SET NAMES utf8mb4 */;

DROP TABLE IF EXISTS `xxl_job_group`;
CREATE TABLE `xxl_job_group` (
  `id` int NOT NULL AUTO_INCREMENT,
  `app_name` varchar(64) NOT NULL COMMENT '执行器AppName',
  `title` varchar(12) NOT NULL,
  `address_type` tinyint NOT NULL DEFAULT '0',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4;
INSERT INTO `xxl_job_group` VALUES (1,'billing-executor','示例',0);

CREATE TABLE `xxl_job_info` (
  `id` int NOT NULL AUTO_INCREMENT,
  `job_group` int NOT NULL,
  `job_desc` varchar(255) NOT NULL,
  `author` varchar(64) DEFAULT NULL,
  `alarm_email` varchar(255) DEFAULT NULL,
  `schedule_type` varchar(50) NOT NULL DEFAULT 'NONE',
  `schedule_conf` varchar(128) DEFAULT NULL,
  `misfire_strategy` varchar(50) NOT NULL DEFAULT 'DO_NOTHING',
  `executor_route_strategy` varchar(50) DEFAULT NULL,
  `executor_handler` varchar(255) DEFAULT NULL,
  `executor_param` varchar(512) DEFAULT NULL,
  `executor_block_strategy` varchar(50) DEFAULT NULL,
  `executor_timeout` int NOT NULL DEFAULT '0',
  `executor_fail_retry_count` int NOT NULL DEFAULT '0',
  `glue_type` varchar(50) NOT NULL,
  `glue_source` mediumtext,
  `glue_remark` varchar(128) DEFAULT NULL,
  `child_jobid` varchar(255) DEFAULT NULL,
  `trigger_status` tinyint NOT NULL DEFAULT '0',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
LOCK TABLES `xxl_job_info` WRITE;
INSERT INTO `xxl_job_info` VALUES
(1,1,'report','ann','ops@example.com','CRON','0 30 2 * * ?','FIRE_ONCE_NOW','ROUND','reportHandler','month=3','SERIAL_EXECUTION',90,2,'BEAN','','GLUE代码初始化','2',1),
(2,1,'月报 clean-up','bob','','NONE','','DO_NOTHING','SHARDING_BROADCAST','','','DISCARD_LATER',0,0,'GLUE_SHELL','#!/bin/bash\r\necho \"it\'s $1; shard $2 of $3\"\r\nexit 0\r\n','keeps 7 days','',0),
(3,1,'groovy','ann','','FIX_RATE','30','DO_NOTHING','FIRST','','','COVER_EARLY',0,0,'GLUE_GROOVY','package com.xxl;\n','x','',1);
UNLOCK TABLES;
